-- The operations of `storage.redis_owners`, each of them atomic. KEYS: a prefix. ARGV: the operation, and its arguments.
-- `entries` has the owner of each object, `order` the objects by the number of their entry, `number` the latest one, and
-- `of:KIND:OWNER` the objects of one owner, the oldest first. `origin` is the instant of the first entry: another one shows
-- that the server was emptied, and that its numbers began anew.
local prefix = KEYS[1]
local ENTRIES, ORDER, NUMBER, ORIGIN = prefix .. 'entries', prefix .. 'order', prefix .. 'number', prefix .. 'origin'
local operations = {}

-- Makes a new origin if the server has lost entries: a restart from an older file, or a failover.
local function check(after)
  if tonumber(after) > tonumber(redis.call('GET', NUMBER) or 0) then
    local at = redis.call('TIME')
    redis.call('SET', ORIGIN, at[1] .. '.' .. at[2])
  end
end

-- Arguments: number read last, most objects and most answers of an owner, then for each entry its object, its owner and
-- its kind (0, 1).
function operations.add(after, most_objects, most_answers, ...)
  check(after)
  local most = { ['0'] = tonumber(most_objects), ['1'] = tonumber(most_answers) }
  local entries, at = { ... }, redis.call('TIME')
  redis.call('SET', ORIGIN, at[1] .. '.' .. at[2], 'NX')
  for n = 1, #entries, 3 do
    local object, owner, kind = entries[n], entries[n + 1], entries[n + 2]
    if redis.call('HSETNX', ENTRIES, object, kind .. owner) == 1 then
      local own = prefix .. 'of:' .. kind .. ':' .. owner
      redis.call('ZADD', ORDER, redis.call('INCR', NUMBER), object)
      if redis.call('RPUSH', own, object) > most[kind] then
        local oldest = redis.call('LPOP', own)
        redis.call('ZREM', ORDER, oldest)
        redis.call('HDEL', ENTRIES, oldest)
      end
    end
  end
end

-- Returns the entries after a number, the last number read, and the origin.
function operations.read(after, at_once)
  check(after)
  local found = redis.call('ZRANGEBYSCORE', ORDER, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, tonumber(at_once))
  local entries = {}
  for n = 1, #found, 2 do
    entries[#entries + 1] = { found[n], redis.call('HGET', ENTRIES, found[n]) or '' }
    after = found[n + 1]
  end
  return { entries, tonumber(after), redis.call('GET', ORIGIN) or '' }
end

return operations[ARGV[1]](unpack(ARGV, 2))
