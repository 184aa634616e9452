-- Stores the overrides by operators that have changed, each unless the store has one that is as late, and returns all.
-- KEYS: the overrides. ARGV: groups of a key, the milliseconds since the change, the milliseconds until it ends (0: it
-- has no end), and the content, which begins with `-` if the override was ended, else with `+`.
-- A value is the instant of the change, that of the end, and the content. The key `` has the version.
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
local kept_ms, ended_ms = 30 * 86400000, 7 * 86400000

local function parsed(said)
  local since, ends, content = string.match(said or '', '^(%d+):(%d+):(.*)$')
  since, ends = tonumber(since), tonumber(ends)
  -- A date in the future is nonsense, or the server's clock has been set back.
  if since and ends and since <= now + 1000 then
    return since, ends, content
  end
end

local is_changed = false
for n = 1, #ARGV, 4 do
  local since, left_ms = now - tonumber(ARGV[n + 1]), tonumber(ARGV[n + 2])
  if ARGV[n] ~= '' and since > (parsed(redis.call('HGET', KEYS[1], ARGV[n])) or 0) then
    local ends = left_ms > 0 and now + left_ms or 0
    redis.call('HSET', KEYS[1], ARGV[n], string.format('%d:%d:', since, ends) .. ARGV[n + 3])
    is_changed = true
  end
end

local version = tonumber(redis.call('HGET', KEYS[1], '') or '0') or 0
if not (version >= 0 and version <= now + 1000) then
  version = 0
end
if is_changed then
  version = math.max(version + 1, now) -- grows also after the store was emptied
  redis.call('HSET', KEYS[1], '', string.format('%d', version))
  redis.call('PEXPIRE', KEYS[1], kept_ms)
end

local entries, found = {}, redis.call('HGETALL', KEYS[1])
for n = 1, #found, 2 do
  local since, ends, content = parsed(found[n + 1])
  local is_ended = content and string.sub(content, 1, 1) == '-'
  if found[n] ~= '' then
    if not since or (is_ended and now - since > ended_ms) or (ends > 0 and now >= ends) then
      redis.call('HDEL', KEYS[1], found[n])
    else
      entries[#entries + 1] = { found[n], since, now - since, ends > 0 and ends - now or 0, content }
    end
  end
end
return { version, entries }
