-- acquire: take the lock and issue a fence token, in one step, if it is free and nobody waits for it, or was handed
-- to us.
-- KEYS[1]  lock key                     string: owner id, or the ticket of the waiter whose turn it is
-- KEYS[2]  counter key                  string: last token
-- KEYS[3]  queue key                    sorted set: waiters
-- KEYS[4]  wake key                     list: the ticket
-- ARGV[1]  owner id; unguessable
-- ARGV[2]  lease in milliseconds, > 0; 0 for a lease without end
-- ARGV[3]  argument of the issuer's mint function
-- ARGV[4]  waiter id to take off the queue; '' for none; 'polls' if we are one of those that can only poll
-- ARGV[5…] the ticket that we received, and owner ids of earlier attempts of this same call whose replies were lost:
--          a lock under one of them is ours
-- Replies  'token end' granted: two numbers, the end of the lease in server milliseconds (0 for none)
--          {remaining lease in milliseconds (-1 without end), owner id} busy
--          {milliseconds, 'ticket:' + ARGV[1] + …} was free, and was handed to a waiter
--          {milliseconds, ''} is free, and it is the turn of locks that poll
--          error FENCE… no token could be issued; nothing was written
--
-- Needs the preludes read_counter, mint, owner_of and hand_over. The token comes first: a script that fails half-way
-- does not roll back, and a lock without a token would stay.
if ARGV[4] ~= '' then
  redis.pcall('ZREM', KEYS[3], ARGV[4])
end
local stored = owner_of(KEYS[1])
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
if stored then
  local ours = false
  for i = 5, #ARGV do
    ours = ours or stored == ARGV[i]
  end
  if not ours and string.sub(stored, 1, 7) == 'ticket:' and redis.pcall('LINDEX', KEYS[4], 0) == stored then
    -- A ticket that is still on the list found nobody to take it.
    ours = true
    redis.call('DEL', KEYS[4])
  end
  if not ours then
    return {redis.call('PTTL', KEYS[1]), stored}
  end
elseif redis.pcall('EXISTS', KEYS[3]) == 1 then
  local handed_ms, ticket = hand_over(KEYS[1], KEYS[3], KEYS[4], 'ticket:' .. ARGV[1], math.floor(now_us / 1000))
  if handed_ms and not (ticket == '' and ARGV[4] == 'polls') then
    return {handed_ms, ticket}
  end
end
local lease_ms = tonumber(ARGV[2])
local token, reason = mint(KEYS[2], now_us, lease_ms, ARGV[3])
if not token then
  return redis.error_reply('FENCE counter ' .. reason)
end
if lease_ms == 0 then
  redis.call('SET', KEYS[1], ARGV[1])
  return token .. ' 0'
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return string.format('%s %.0f', token, math.floor(now_us / 1000) + lease_ms)
