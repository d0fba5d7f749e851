"""A Django project in one file that enqueues: synchronous, after the transaction, from any number of processes.

export ECHOMQ_URL=redis://localhost:6379/0
pip install django
python examples/django_producer.py runserver
curl localhost:8000/emails -d '{"to": "ada@example.com", "subject": "Hello"}'
echomq-worker run examples.two_queues:worker
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache, partial

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import execute_from_command_line
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_POST

from echomq_worker.errors import WireError
from echomq_worker.sync import Connector, Jobs


@cache
def jobs() -> Jobs:
    """One for all threads. Made when it is first needed; a process that is forked afterwards connects for itself."""
    return Jobs(Connector(os.environ["ECHOMQ_URL"]))


@require_POST
def send(request: HttpRequest) -> HttpResponse:
    """Admit a mail when the transaction has committed: a worker that is quick finds in the database what it needs."""
    email = json.loads(request.body)
    try:
        with transaction.atomic():
            # The rows that the mail is about are written here.
            transaction.on_commit(partial(jobs().enqueue, "emails", {"to": email["to"], "subject": email["subject"]}))
    except WireError:
        return JsonResponse({"error": "the queue cannot be reached, try again"}, status=503)
    return JsonResponse({"waiting": jobs().counts("emails").ready}, status=202)


urlpatterns: list[URLPattern] = [path("emails", send)]


def configured() -> WSGIHandler:
    """Django with these settings, as a WSGI application: `gunicorn 'examples.django_producer:configured()'`."""
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["localhost", "testserver"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()
    return WSGIHandler()


if __name__ == "__main__":
    configured()
    execute_from_command_line(sys.argv)
