// What the pages gain with a script: live parts, and a box that marks all. Everything works without it.
"use strict";

// Makes `old` equal to `fresh` where they differ and nowhere else: focus, scrolling and what was marked stay.
function morph(old, fresh) {
  const kept = new Map();
  for (const child of old.children) if (child.dataset.key) kept.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = wanted.nodeType === 1 ? wanted.dataset.key : undefined;
    const known = key ? kept.get(key) : undefined;
    if (known && known !== place) {
      old.insertBefore(known, place);
      place = known;
    }
    if (place && place.nodeType === wanted.nodeType && place.nodeName === wanted.nodeName && (!key || known)) {
      if (wanted.nodeType === 1) {
        attributes(place, wanted);
        morph(place, wanted);
      } else if (place.nodeValue !== wanted.nodeValue) place.nodeValue = wanted.nodeValue;
      place = place.nextSibling;
    } else old.insertBefore(document.importNode(wanted, true), place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
}

function live(address) {
  const state = document.getElementById("state");
  const tell = (on) => {
    const text = on ? state.dataset.on : state.dataset.off;
    state.hidden = false;
    state.classList.toggle("on", on);
    if (state.textContent !== text) state.textContent = text;
  };
  const source = new EventSource(address);
  source.onmessage = (message) => {
    tell(true);
    for (const [id, html] of Object.entries(JSON.parse(message.data))) {
      const old = document.getElementById(id);
      if (old) morph(old, new DOMParser().parseFromString(html, "text/html").body);
    }
  };
  source.onerror = () => tell(false);
  addEventListener("pagehide", () => source.close());
  // Back from the browser's own cache the page is old: what it shows is asked for anew.
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

const main = document.getElementById("main");
if (main.dataset.live) live(main.dataset.live);

for (const form of document.querySelectorAll("[data-marks]")) {
  const all = form.querySelector("[data-all]");
  if (!all) continue;
  const boxes = [...form.querySelectorAll("input[name=id]")];
  const box = all.querySelector("input");
  all.hidden = false;
  box.addEventListener("change", () => { for (const one of boxes) one.checked = box.checked; });
  form.addEventListener("change", () => {
    const marked = boxes.filter((one) => one.checked).length;
    box.checked = marked > 0 && marked === boxes.length;
    box.indeterminate = marked > 0 && marked < boxes.length;
  });
}
