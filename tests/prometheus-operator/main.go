// Command prometheus-config prints the configuration of a Prometheus that the Prometheus Operator
// generates from PodMonitors, with the operator's own code.
//
// Standard input is a JSON object: `prometheus` is an object of the kind Prometheus, `podMonitors`
// a list of PodMonitors. An unknown field, and a PodMonitor that the operator rejects or does not
// select for the Prometheus, is an error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus-operator/prometheus-operator/pkg/assets"
	"github.com/prometheus-operator/prometheus-operator/pkg/operator"
	"github.com/prometheus-operator/prometheus-operator/pkg/prometheus"
	client "github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

type objects struct {
	Prometheus  monitoringv1.Prometheus    `json:"prometheus"`
	PodMonitors []*monitoringv1.PodMonitor `json:"podMonitors"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus-config:", err)
		os.Exit(1)
	}
}

func run(input io.Reader, output io.Writer) error {
	var objects objects
	decoder := json.NewDecoder(input)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&objects); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	configuration, err := objects.configuration(context.Background())
	if err != nil {
		return err
	}
	_, err = output.Write(configuration)
	return err
}

// list is the operator's cache of PodMonitors.
func (o *objects) list(namespace string, selector labels.Selector, add cache.AppendFunc) error {
	for _, monitor := range o.PodMonitors {
		if monitor.Namespace == namespace && selector.Matches(labels.Set(monitor.Labels)) {
			add(monitor)
		}
	}
	return nil
}

func (o *objects) configuration(ctx context.Context) ([]byte, error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	secrets := assets.NewTestStoreBuilder() // none
	selector, err := prometheus.NewResourceSelector(logger, &o.Prometheus, secrets, nil,
		operator.NewMetrics(client.NewRegistry()), &record.FakeRecorder{})
	if err != nil {
		return nil, err
	}
	selected, err := selector.SelectPodMonitors(ctx, o.list)
	if err != nil {
		return nil, err
	}
	monitors := selected.ValidResources()
	if len(monitors) != len(o.PodMonitors) {
		return nil, fmt.Errorf("the operator uses %d of %d PodMonitors: it rejects the others, or "+
			"the Prometheus does not select them", len(monitors), len(o.PodMonitors))
	}
	generator, err := prometheus.NewConfigGenerator(logger, &o.Prometheus)
	if err != nil {
		return nil, err
	}
	return generator.GenerateServerConfiguration(&o.Prometheus, nil, monitors, nil, nil, secrets,
		nil, nil, nil, nil)
}
