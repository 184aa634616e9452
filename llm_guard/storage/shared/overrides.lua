-- Stores the overrides by operators that have changed, each unless the store has a later one, and returns all of them.
-- KEYS: the overrides, their version. ARGV: groups of a key, the milliseconds since the change, and the content, which
-- begins with `-` if the override was ended, else with `+`.
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
local kept_ms, ended_ms = 30 * 86400000, 7 * 86400000

local function parsed(said)
  local mark = said and string.find(said, ':', 1, true)
  local since = mark and tonumber(string.sub(said, 1, mark - 1))
  -- A date in the future is nonsense, or the server's clock has been set back. The comparison is false for NaN.
  if since and since <= now + 1000 then
    return since, string.sub(said, mark + 1)
  end
end

local is_changed = false
for n = 1, #ARGV, 3 do
  local since = now - tonumber(ARGV[n + 1])
  if since >= (parsed(redis.call('HGET', KEYS[1], ARGV[n])) or 0) then
    redis.call('HSET', KEYS[1], ARGV[n], string.format('%d', since) .. ':' .. ARGV[n + 2])
    is_changed = true
  end
end

local version = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
if is_changed then
  version = math.max(version + 1, now) -- grows also after the store was emptied
  redis.call('SET', KEYS[2], string.format('%d', version), 'PX', kept_ms)
  redis.call('PEXPIRE', KEYS[1], kept_ms)
end

local entries, found = {}, redis.call('HGETALL', KEYS[1])
for n = 1, #found, 2 do
  local since, content = parsed(found[n + 1])
  if not since or (string.sub(content, 1, 1) == '-' and now - since > ended_ms) then
    redis.call('HDEL', KEYS[1], found[n])
  else
    entries[#entries + 1] = { found[n], since, content }
  end
end
return { version, entries }
