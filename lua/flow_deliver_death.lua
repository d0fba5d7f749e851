-- flow_deliver_death: a child's death in another queue reaches its parent (protocol section 6). Delivered twice it counts
-- once; a parent whose row is gone is not made anew. A parent that dies of it is reported to its own parent here.
-- KEYS[1] emq:{q}:job:<id>:dependencies
-- KEYS[2] emq:{q}:job:<id>:failed
-- KEYS[3] emq:{q}:job:<id>:unsuccessful
-- KEYS[4] emq:{q}:job:<id>  the parent's row
-- ARGV[1] child id
-- ARGV[2] error
-- ARGV[3] policy  fp | id
-- ARGV[4] emq:{q}:  of the parent
-- ARGV[5] parent id
-- returns 1
-- include: lane
-- include: flow
local p = ARGV[4]
touch_ended(p, {id = ARGV[1], parent = ARGV[5]})
child_dead(p, ARGV[5], ARGV[1], ARGV[2], ARGV[3])
return 1
