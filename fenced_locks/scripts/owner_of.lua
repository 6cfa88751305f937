-- owner_of: who has the lock.
-- lock       lock key                   string: owner id, or a ticket
-- Returns    the owner id or ticket; false for nobody; '' if the key is no string, and so no lock
--
-- Other errors, such as a missing permission, are the script's: taken for a lock they would be waited for.
local function owner_of(lock)
  local stored = redis.pcall('GET', lock)
  if type(stored) ~= 'table' then
    return stored
  end
  if string.find(tostring(stored.err), 'WRONGTYPE', 1, true) then
    return ''
  end
  return redis.call('GET', lock)
end
