-- Fencing: `held` on the wire is `token:random`; a plain client sends the token alone.
local function token_of(held)
  return string.match(held, '^[^:]*')
end

-- The answer recorded for this very token by an earlier verdict, or nil (row field `settled` = `token:answer`).
local function settled_answer(settled, token)
  if settled and string.sub(settled, 1, #token + 1) == token .. ':' then return string.sub(settled, #token + 2) end
  return nil
end

-- True where the caller's claim is not the row's: another token, or another claim under the same token (an id that was
-- removed or completed and enqueued again starts at token 1 again).
local function is_stale(attempts, row_held, held, token)
  token = token or token_of(held)
  if attempts ~= token then return true end
  return row_held and held ~= token and row_held ~= held
end
