#include "rotation.h"

#include <math.h>
#include <stdio.h>

#include "lanes.h"
#include "store.h"

enum { MOST_LANES = 1000 };

static void add(Call *c, Sources *sources, Source *source) {
    if (sources->n == sources->room) {
        size_t room = sources->room ? 2 * sources->room : 16;
        Source **at = pool(c, room, sizeof *at);
        if (sources->n) memcpy(at, sources->at, sources->n * sizeof *at);
        sources->at = at;
        sources->room = room;
    }
    sources->at[sources->n++] = source;
}

/* `name:taken`; the name may have colons of its own. */
static void read_cut(Call *c, Rotation *rot, const Str *cut) {
    Text text = text_of(cut);
    size_t digits = 0;
    while (digits < text.len && text.at[text.len - digits - 1] >= '0' && text.at[text.len - digits - 1] <= '9') digits++;
    if (!digits || digits == text.len || text.at[text.len - digits - 1] != ':') return;
    rot->cut_name = (Text){text.at, text.len - digits - 1};
    rot->cut_taken = number_of(str_of(c, (Text){text.at + text.len - digits, digits}), 0);
}

void rotation_start(Rotation *rot, Claim *claim, Str *ring, const Str *cut) {
    size_t length = length_of(claim->c, ring, TYPE_LIST);
    *rot = (Rotation){.ring = ring, .length = length, .lanes = (double)length, .progress = true};
    rot->size = claim->room < MOST_LANES ? claim->room : MOST_LANES;
    if (cut) read_cut(claim->c, rot, cut);
}

static double field_number(Key *hash, Str *field, double otherwise) {
    Str *value = NULL;
    if (hash) VM_HashGet(hash, 0, field, &value, NULL);
    return number_of(value, otherwise);
}

static void close(Key *key) {
    if (key) VM_CloseKey(key);
}

static List names_of(Call *c, const Rotation *rot) {
    List names = {0};
    Key *ring = open_read(c, rot->ring, TYPE_LIST);
    for (size_t i = rot->loaded; ring && i < rot->length && i < rot->loaded + rot->size; i++) {
        list_add(c, &names, VM_ListGet(ring, (long)i));
    }
    close(ring);
    return names;
}

/* Reads on: names and counters. */
static void load_lanes(Claim *claim, Rotation *rot) {
    Call *c = claim->c;
    List names = names_of(c, rot);
    Key *limits = open_read(c, queue_key(c, "glimit"), TYPE_HASH), *busy = open_read(c, queue_key(c, "gactive"), TYPE_HASH);
    Key *weights = open_read(c, queue_key(c, "gweight"), TYPE_HASH);
    Str *paused = queue_key(c, "paused");
    for (size_t i = 0; i < names.n; i++) {
        Str *name = names.at[i];
        Source *lane = pool(c, 1, sizeof *lane);
        *lane = (Source){.key = lane_key(c, name), .name = name};
        lane->weight = fmax(1, field_number(weights, name, 1));
        lane->busy = field_number(busy, name, 0);
        lane->limit = field_number(limits, name, INFINITY);
        bool again = table_mark(c, &rot->seen, name);
        lane->ended = again || set_has(c, paused, name) || lane->busy >= lane->limit;
        add(c, &rot->queue, lane);
        add(c, &rot->all, lane);
    }
    close(limits);
    close(busy);
    close(weights);
    rot->loaded += names.n;
    rot->size = 2 * rot->size < MOST_LANES ? 2 * rot->size : MOST_LANES;
}

bool next_lane(Claim *claim, Rotation *rot) {
    if (rot->head >= rot->queue.n && rot->loaded < rot->length) load_lanes(claim, rot);
    if (rot->head < rot->queue.n) return true;
    if (!rot->later.n || !rot->progress) return false;
    rot->queue = rot->later;
    rot->later = (Sources){0};
    rot->head = 0;
    rot->wrapped = true;
    rot->progress = false;
    return true;
}

static bool has_room(const Source *lane) {
    return lane->busy + (double)lane->started < lane->limit;
}

static Str *cut_at(Call *c, const Source *lane, double taken) {
    char text[32];
    int len = snprintf(text, sizeof text, ":%.0f", taken);
    Text parts[] = {text_of(lane->name), {text, (size_t)len}};
    return joined(c, parts, 2);
}

bool serve_lane(Claim *claim, Rotation *rot) {
    Source *lane = rot->queue.at[rot->head];
    bool goes_on = rot->cut_name.at && same(text_of(lane->name), rot->cut_name);
    double before = goes_on ? fmin(rot->cut_taken, lane->weight) : 0, taken = before;
    rot->cut_name.at = NULL;
    rot->cut = NULL;
    while (taken < lane->weight && has_room(lane) && claim->count < claim->room && next_job(claim, lane)) taken++;
    if (taken > before) rot->progress = true;
    bool again = has_room(lane) && (has_more(claim, lane) || lane->passed);
    if (again && taken > 0 && taken < lane->weight && claim->count >= claim->room) {
        rot->cut = cut_at(claim->c, lane, taken);
        return false;
    }
    rot->head++;
    if (!rot->wrapped) rot->visited++;
    if (again) {
        add(claim->c, &rot->later, lane);
    } else {
        rot->lanes--;
    }
    return true;
}

size_t entries_left(const Rotation *rot) {
    return rot->later.n + (rot->wrapped ? rot->queue.n - rot->head : rot->length - rot->visited);
}

void write_ring(Call *c, const Rotation *rot) {
    List names = {0};
    if (rot->wrapped) {
        for (size_t i = rot->head; i < rot->queue.n; i++) list_add(c, &names, rot->queue.at[i]->name);
        VM_Call(c->ctx, "DEL", "!s", rot->ring);
    } else {
        VM_Call(c->ctx, "LTRIM", "!slc", rot->ring, (long long)rot->visited, "-1");
    }
    for (size_t i = 0; i < rot->later.n; i++) list_add(c, &names, rot->later.at[i]->name);
    if (names.n) VM_Call(c->ctx, "RPUSH", "!sv", rot->ring, names.at, names.n);
}
