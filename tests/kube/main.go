// Command kube is the programs of a Kubernetes cluster in one binary: Kubernetes' own, etcd and CoreDNS.
//
// The name it is called by says which of them runs (build.sh lays a link for each), so that one link step and one
// copy of the shared code serve all. It adds nothing to the programs and takes nothing away.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	_ "time/tzdata" // CronJobs name time zones; the nodes' machine may have no table of them

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A program takes the arguments that its own binary would see, name included, and returns only to end the process.
type program func(arguments []string)

var programs = map[string]program{
	"etcd":                    etcdmain.Main,
	"coredns":                 func([]string) { coremain.Run() },
	"kube-apiserver":          ofCobra(apiserver.NewAPIServerCommand),
	"kube-controller-manager": ofCobra(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          ofCobra(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 ofCobra(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 ofCobra(kubectl.NewDefaultKubectlCommand),
}

func ofCobra(command func() *cobra.Command) program {
	return func([]string) { os.Exit(cli.Run(command())) }
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: called as %q; call it by a link named as one of %q\n", name, slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	run(os.Args)
}
