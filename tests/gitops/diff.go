package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// states of one object.
type states struct {
	Desired   *unstructured.Unstructured `json:"desired"`
	Live      *unstructured.Unstructured `json:"live"`
	Predicted json.RawMessage            `json:"predicted"`
}

// prediction is the recorded result of a dry run.
type prediction string

// Run implements diff.ServerSideDryRunner.
func (p prediction) Run(context.Context, *unstructured.Unstructured, string) (string, error) {
	return string(p), nil
}

// comparison is what Argo CD compares; they differ if the application is OutOfSync.
type comparison struct {
	Modified  bool            `json:"modified"`
	Live      json.RawMessage `json:"live"`
	Predicted json.RawMessage `json:"predicted"`
}

func difference(text []byte) (*comparison, error) {
	var objects states
	if err := json.Unmarshal(text, &objects); err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	var options []diff.Option
	if objects.Predicted != nil {
		options = []diff.Option{
			diff.WithServerSideDiff(true),
			diff.WithServerSideDryRunner(prediction(objects.Predicted)),
			diff.WithManager("argocd-controller"),
			diff.WithIgnoreMutationWebhook(false),
		}
	}
	result, err := diff.Diff(objects.Desired, objects.Live, options...)
	if err != nil {
		return nil, fmt.Errorf("Argo CD: %w", err)
	}
	return &comparison{result.Modified, result.NormalizedLive, result.PredictedLive}, nil
}
