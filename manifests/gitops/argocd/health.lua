-- Health of an RLJob for Argo CD, from its conditions; docs/gitops.md has the table of states.
-- Argo CD itself reports an object that is being deleted as Progressing.
local function health(status, condition)
  local text = condition.reason
  if condition.message ~= nil and condition.message ~= "" then
    text = text .. ": " .. condition.message
  end
  return {status = status, message = text}
end

-- The API server sets status.observedGeneration to -1 until the operator has seen the job.
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "waiting for the operator to observe the spec"}
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  conditions[condition.type] = condition
end
local function is_true(name)
  return conditions[name] ~= nil and conditions[name].status == "True"
end

if is_true("Stalled") then
  return health("Degraded", conditions.Stalled)
end
if conditions.Ready == nil then
  return {status = "Progressing", message = "waiting for the operator to report conditions"}
end
if is_true("Suspended") then
  return health("Suspended", conditions.Ready)
end
if is_true("Ready") then
  return health("Healthy", conditions.Ready)
end
return health("Progressing", conditions.Ready)
