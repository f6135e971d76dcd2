// Command kube contains all programs of a Kubernetes cluster, unmodified: Kubernetes, etcd and
// CoreDNS.
//
// The name of the executable selects the program (build.sh creates a link for each), so that the
// shared code is compiled and linked once.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	_ "time/tzdata" // time zones of CronJobs, which the host may lack

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

// A program takes os.Args and returns only to exit the process.
type program func(arguments []string)

var programs = map[string]program{
	"etcd":                    etcdmain.Main,
	"coredns":                 func([]string) { coremain.Run() },
	"kube-apiserver":          cobraProgram(apiserver.NewAPIServerCommand),
	"kube-controller-manager": cobraProgram(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          cobraProgram(schedulerCommand),
	"kubelet":                 cobraProgram(kubeletCommand),
	"kubectl":                 cobraProgram(kubectl.NewDefaultKubectlCommand),
}

func schedulerCommand() *cobra.Command { return scheduler.NewSchedulerCommand() }

func kubeletCommand() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }

func cobraProgram(command func() *cobra.Command) program {
	return func([]string) { os.Exit(cli.Run(command())) }
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: called as %q; use a link with one of the names %q\n",
			name, slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	run(os.Args)
}
