-- hand_over: give a lock that is free to the waiter who has blocked longest, if anybody is registered.
-- lock       lock key                   free; becomes the ticket, for one claim window
-- queue      queue key                  sorted set: waiter ids by the server time of their arrival, in microseconds,
--                                       and '' with the server time at which the present run began, in milliseconds,
--                                       negative while it is the turn of locks that poll; none before a hand-over
-- wake       wake key                   list: the ticket, until the waiter takes it; lives one claim window
-- ticket     fresh and unguessable      its beginning; whoever has the whole may take the lock
-- now_ms     server time in milliseconds
-- Returns    milliseconds, ticket       handed over; the ticket is good for that long
--            milliseconds, ''           kept free for that long, for locks that poll
--            nil                        nobody is registered, or there is no room or no place for a ticket
--
-- A ticket consumes one registration, so that waiters who died cost no more than they were. It ends with their id. In
-- a run the lock goes from ticket to ticket and is never free, so that a plain lock, which polls, would never find it;
-- hence the turns.
local CLAIM_MS, RUN_MS, TURN_MS = 500, 10000, 150

local function hand_over(lock, queue, wake, ticket, now_ms)
  local entries = redis.pcall('ZRANGE', queue, 0, 1, 'WITHSCORES')
  local waiter, began = entries[1], 0
  if waiter == '' then
    waiter, began = entries[3], tonumber(entries[2])
  end
  if not waiter then
    return nil
  end
  local age_ms = now_ms - math.abs(began)
  if began > 0 and age_ms >= RUN_MS then
    redis.pcall('ZADD', queue, -now_ms, '')
    return TURN_MS, ''
  end
  if began < 0 and age_ms >= 0 and age_ms < TURN_MS then
    return TURN_MS - age_ms, ''
  end
  ticket = ticket .. ':' .. waiter
  if redis.pcall('SET', lock, ticket, 'PX', CLAIM_MS).err then
    return nil
  end
  if began <= 0 then
    -- Before the waiter goes: a set that became empty would lose its expiry.
    redis.call('ZADD', queue, now_ms, '')
  end
  redis.call('ZREM', queue, waiter)
  local length = redis.pcall('RPUSH', wake, ticket)
  if type(length) == 'table' then
    -- Somebody else's key, so nobody can be waiting there.
    redis.call('DEL', lock)
    return nil
  end
  if length ~= 1 then
    -- One from before that nobody took.
    redis.call('DEL', wake)
    redis.call('RPUSH', wake, ticket)
  end
  redis.call('PEXPIRE', wake, CLAIM_MS)
  return CLAIM_MS, ticket
end
