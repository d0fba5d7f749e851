-- flow_deliver: a completion from another queue reaches its parent (protocol section 6). Delivered twice it counts once; a
-- parent whose row is gone is not made anew.
-- KEYS[1] emq:{q}:job:<id>:dependencies
-- KEYS[2] emq:{q}:job:<id>:processed
-- KEYS[3] emq:{q}:job:<id>  the parent's row
-- ARGV[1] child id
-- ARGV[2] result
-- ARGV[3] parent id
-- ARGV[4] emq:{q}:  of the parent
-- returns 1
-- include: lane
-- include: flow
local p = ARGV[4]
touch_ended(p, {id = ARGV[1], parent = ARGV[3]})
child_done(p, ARGV[3], ARGV[1], ARGV[2])
return 1
