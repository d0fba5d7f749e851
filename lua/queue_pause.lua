-- queue_pause: nothing of the queue is claimed by our workers until it is resumed; what is in hand goes on.
-- KEYS[1] emq:{q}:meta
-- returns 1
redis.call('HSET', KEYS[1], 'paused', '1')
return 1
