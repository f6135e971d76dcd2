package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	argocd "github.com/argoproj/argo-cd/gitops-engine/pkg/health"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Starts of keys of argocd-cm.
const (
	healthKey  = "resource.customizations.health."
	actionsKey = "resource.customizations.actions."
)

// verdict is the state of an object and a message.
type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// verdicts are states of one object.
type verdicts struct {
	ArgoCD      verdict `json:"argocd"`
	Kstatus     verdict `json:"kstatus"`
	Expressions string  `json:"expressions"`
}

func health(text []byte, configMap, kustomization string) (*verdicts, error) {
	object, overrides, err := judged(text, configMap)
	if err != nil {
		return nil, err
	}
	byArgoCD, err := argocd.GetResourceHealth(object, overrides)
	if err != nil {
		return nil, fmt.Errorf("Argo CD: %w", err)
	}
	if byArgoCD == nil {
		return nil, fmt.Errorf("%s has no health check for %s", configMap, object.GroupVersionKind())
	}
	byKstatus, err := status.Compute(object)
	if err != nil {
		return nil, fmt.Errorf("kstatus: %w", err)
	}
	byExpressions, err := fluxStatus(object, kustomization)
	if err != nil {
		return nil, err
	}
	return &verdicts{
		ArgoCD:      verdict{string(byArgoCD.Status), byArgoCD.Message},
		Kstatus:     verdict{byKstatus.Status.String(), byKstatus.Message},
		Expressions: byExpressions.Status.String(),
	}, nil
}

// judged returns the object on standard input, and the overrides of an argocd-cm by which it is
// judged.
func judged(
	text []byte, configMap string,
) (*unstructured.Unstructured, lua.ResourceHealthOverrides, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return nil, nil, fmt.Errorf("standard input is not an object: %w", err)
	}
	overrides, err := argocdOverrides(configMap)
	return object, overrides, err
}

// argocdOverrides reads health checks and actions as Argo CD does: GROUP_KIND in a key is
// GROUP/KIND.
func argocdOverrides(configMap string) (lua.ResourceHealthOverrides, error) {
	var settings struct {
		Data map[string]string `json:"data"`
	}
	if err := readYAML(configMap, &settings); err != nil {
		return nil, err
	}
	overrides := lua.ResourceHealthOverrides{}
	set := func(kind string, change func(*v1alpha1.ResourceOverride)) {
		kind = strings.Replace(kind, "_", "/", 1)
		override := overrides[kind]
		change(&override)
		overrides[kind] = override
	}
	for key, value := range settings.Data {
		if kind, found := strings.CutPrefix(key, healthKey); found {
			set(kind, func(override *v1alpha1.ResourceOverride) { override.HealthLua = value })
		}
		if kind, found := strings.CutPrefix(key, actionsKey); found {
			set(kind, func(override *v1alpha1.ResourceOverride) { override.Actions = value })
		}
	}
	return overrides, nil
}

// fluxStatus evaluates the expressions of a Kustomization for the kind of the object.
func fluxStatus(object *unstructured.Unstructured, kustomization string) (*status.Result, error) {
	var flux struct {
		Spec struct {
			HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := readYAML(kustomization, &flux); err != nil {
		return nil, err
	}
	for _, check := range flux.Spec.HealthCheckExprs {
		if check.APIVersion != object.GetAPIVersion() || check.Kind != object.GetKind() {
			continue
		}
		evaluator, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kustomization, err)
		}
		result, err := evaluator.Evaluate(context.Background(), object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kustomization, err)
		}
		return result, nil
	}
	return nil, fmt.Errorf("%s has no expressions for %s", kustomization, object.GroupVersionKind())
}

func readYAML(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
