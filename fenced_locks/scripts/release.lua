-- release: give the lock back if it is still ours, to the next waiter if there is one. Deletes it where a ticket
-- cannot be stored, so it works when the server is full.
-- KEYS[1]  lock key                     string: owner id
-- KEYS[2]  queue key                    sorted set: waiters
-- KEYS[3]  wake key                     list: the ticket
-- ARGV[1]  ticket for the next waiter; fresh and unguessable
-- ARGV[2]  waiter id to take off the queue; '' for none
-- ARGV[3…] owner ids, or a ticket, any of which is ours
-- Replies  1 released | {remaining lease in milliseconds, owner id or ''} not ours
--
-- Needs the preludes owner_of and hand_over.
if ARGV[2] ~= '' then
  redis.pcall('ZREM', KEYS[2], ARGV[2])
end
local stored = owner_of(KEYS[1])
for i = 3, #ARGV do
  if stored == ARGV[i] then
    local members = redis.pcall('ZCARD', KEYS[2])
    if members == 0 then
      redis.call('DEL', KEYS[1])
      return 1
    end
    local time = redis.call('TIME')
    local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    local handed_ms, ticket = hand_over(KEYS[1], KEYS[2], KEYS[3], ARGV[1], now_ms)
    if not ticket or ticket == '' then
      redis.call('DEL', KEYS[1])
    end
    if not handed_ms and members == 1 and redis.call('ZSCORE', KEYS[2], '') then
      -- Nobody waits: the run is over.
      redis.call('DEL', KEYS[2])
    end
    return 1
  end
end
return {redis.call('PTTL', KEYS[1]), stored or ''}
