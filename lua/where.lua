-- where: which set holds an id, and what is wrong with that, in one look (ours).
-- KEYS[1] emq:{q}:job:<id>  the row
-- ARGV[1] emq:{q}:
-- ARGV[2] id
-- ARGV[3] group  of a lane in which it was seen, '' for none; the lane on its row is looked at in any case
-- returns {set, state, complaint}  set: active | pending | lane | schedule | dead | '' in none; state of the row, '' without;
--   complaint: '' | id_without_row | subkeys_without_row | row_in_no_set | two_sets | nothing_out (a parent that waits for nobody)
-- include: lane
-- include: standing
local one = look(ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil)
return {one.sets[1] and one.sets[1].name or '', one.state, complaint(one)}
