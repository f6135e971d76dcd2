package main

import (
	"fmt"

	"github.com/argoproj/argo-cd/v3/util/lua"
)

// actions returns the object as each action that Argo CD offers for it would change it, by name.
func actions(text []byte, configMap string) (map[string]any, error) {
	object, overrides, err := judged(text, configMap)
	if err != nil {
		return nil, err
	}
	machine := lua.VM{ResourceOverrides: overrides}
	scripts, err := machine.GetResourceActionDiscovery(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configMap, err)
	}
	offered, err := machine.ExecuteResourceActionDiscovery(object, scripts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configMap, err)
	}
	results := map[string]any{}
	for _, action := range offered {
		definition, err := machine.GetResourceAction(object, action.Name)
		if err != nil {
			return nil, fmt.Errorf("%s: action %s: %w", configMap, action.Name, err)
		}
		impacted, err := machine.ExecuteResourceAction(object, definition.ActionLua, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: action %s: %w", configMap, action.Name, err)
		}
		if len(impacted) != 1 || impacted[0].K8SOperation != lua.PatchOperation {
			return nil, fmt.Errorf("action %s does not patch one object", action.Name)
		}
		results[action.Name] = impacted[0].UnstructuredObj.Object
	}
	return results, nil
}
