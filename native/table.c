#include "table.h"

static size_t hash_of(Text text) {
    size_t hash = 5381;
    for (size_t i = 0; i < text.len; i++) hash = hash * 33 ^ (unsigned char)text.at[i];
    return hash ^ hash >> 15;
}

/* The slot that has the key, or the free one where it belongs. */
static Slot *find(const Table *table, const Str *key) {
    Text text = text_of(key);
    size_t mask = table->room - 1;
    for (size_t i = hash_of(text) & mask;; i = (i + 1) & mask) {
        Slot *slot = &table->slots[i];
        if (!slot->key || same(text_of(slot->key), text)) return slot;
    }
}

static void grow(Call *c, Table *table) {
    Table old = *table;
    table->room = old.room ? 2 * old.room : 64;
    table->slots = pool(c, table->room, sizeof(Slot));
    memset(table->slots, 0, table->room * sizeof(Slot));
    for (size_t i = 0; i < old.room; i++) {
        if (old.slots[i].key) *find(table, old.slots[i].key) = old.slots[i];
    }
}

void **table_at(Call *c, Table *table, const Str *key) {
    if (2 * table->n >= table->room) grow(c, table);
    Slot *slot = find(table, key);
    if (!slot->key) {
        slot->key = key;
        table->n++;
    }
    return &slot->value;
}

bool table_mark(Call *c, Table *table, const Str *key) {
    void **value = table_at(c, table, key);
    bool before = *value;
    *value = table;
    return before;
}
