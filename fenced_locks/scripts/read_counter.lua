-- read_counter: the last token of a resource, checked before anything is written.
-- counter    counter key                string: last token
-- Returns    the last token as a number (0 for none), or nil and the reason why it cannot be used
local MAX_TOKEN = 9007199254740992

local function read_counter(counter)
  local stored = redis.pcall('GET', counter)
  if type(stored) == 'table' then
    return nil, 'has the wrong type: it is a ' .. redis.call('TYPE', counter).ok
  end
  if not stored then
    return 0
  end
  local last = tonumber(stored)
  if last and last >= 0 and last < MAX_TOKEN and string.format('%.0f', last) == stored then
    return last
  end
  local shown = string.gsub(string.sub(stored, 1, 40), '[^%w%p ]', '?')
  if string.match(stored, '^[1-9]%d*$') then
    return nil, 'is beyond the range of exact numbers (2^53): ' .. shown
  end
  return nil, 'is not a number: ' .. shown
end
