-- join: register as a waiter, or stay registered. Never takes the lock: one that is free goes to whoever has blocked
-- longest on the wake key. Sent twice, it does the same as sent once.
-- KEYS[1]  lock key                     string: owner id
-- KEYS[2]  queue key                    sorted set: waiters
-- KEYS[3]  wake key                     list: the ticket
-- ARGV[1]  waiter id
-- ARGV[2]  ticket, if the lock is free; fresh and unguessable
-- ARGV[3]  how long the queue is kept at least, in milliseconds; longer than until the next join
-- Replies  {remaining lease in milliseconds (-1 without end), owner id} held
--          {milliseconds, ticket} was free, and was handed to a waiter
--          {milliseconds, ''} is free, and it is the turn of locks that poll
--          {-2, ''} is free, and cannot be handed to anybody
--          each with an error behind it where the server refuses to register us
--
-- Needs the preludes owner_of and hand_over.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
-- A server that is full, or has somebody else's key there, refuses; the lock can still be had when it is free.
local added = redis.pcall('ZADD', KEYS[2], 'NX', string.format('%.0f', now_us), ARGV[1])
local refusal = type(added) == 'table' and added.err or nil
if not refusal and redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
local stored = owner_of(KEYS[1])
if stored then
  return {redis.call('PTTL', KEYS[1]), stored or '', refusal}
end
local handed_ms, ticket = hand_over(KEYS[1], KEYS[2], KEYS[3], ARGV[2], now_ms)
return {handed_ms or -2, ticket or '', refusal}
