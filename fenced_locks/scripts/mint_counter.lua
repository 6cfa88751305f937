-- mint (issuer counter): token = last + 1, on a key without expiry.
-- counter    counter key                string: last token
-- now_us     server time in microseconds, not used
-- lease_ms   lease in milliseconds      not used
-- argument   not used
-- Returns    the token as a string of digits, or nil and the reason why there is none
local function mint(counter, now_us, lease_ms, argument)
  local last, reason = read_counter(counter)
  if not last then
    return nil, reason
  end
  if last + 1 >= MAX_TOKEN then
    return nil, 'would leave the range of exact numbers (2^53)'
  end
  local token = redis.call('INCR', counter)
  -- Another issuer may have left an expiry on the key.
  redis.call('PERSIST', counter)
  return string.format('%.0f', token)
end
