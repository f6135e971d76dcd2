// Command device-plugin advertises the NVIDIA GPUs of a node to its kubelet, or stand-ins of GPUs
// on a machine without any. A container sees its own GPUs, the driver's control devices and the
// driver's libraries; it needs no NVIDIA container runtime.
//
//	kubelet ◀── Register ────────────── plugin
//	        ─── ListAndWatch, Allocate ─▶      devices.go, driver.go
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const registrationLimit = 10 * time.Second

func main() {
	resource := flag.String("resource", "nvidia.com/gpu", "name of the extended resource")
	standIns := flag.Int("stand-ins", 0, "number of GPUs to stand in for; 0 advertises real GPUs")
	replicas := flag.Int("replicas", 1, "number of containers that can use a GPU at a time")
	libraries := flag.String("libraries", strings.Join([]string{
		"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
	}, ":"), "folders with the driver's libraries, separated by colons; the first one counts")
	target := flag.String("target", "/usr/local/nvidia/lib64",
		"folder of the driver's libraries in containers")
	flag.Parse()
	folders := strings.Split(*libraries, ":")
	if err := run(*resource, *standIns, *replicas, folders, *target); err != nil {
		fmt.Fprintf(os.Stderr, "device-plugin: %v\n", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM, SIGINT or the end of the kubelet, which removes the socket when it
// starts again.
func run(resource string, standIns, replicas int, folders []string, target string) error {
	plugin, err := newPlugin(standIns, replicas, folders, target)
	if err != nil {
		return err
	}
	name := strings.ReplaceAll(resource, "/", "_") + ".sock"
	path := filepath.Join(api.DevicePluginPath, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to remove the socket of an earlier plugin: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("failed to listen: %w", err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, plugin)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	defer server.Stop()
	if err := register(name, resource); err != nil {
		return err
	}
	fmt.Printf("device-plugin: %s: %s\n", resource, plugin)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-failed:
		return fmt.Errorf("failed to serve: %w", err)
	}
}

func register(endpoint, resource string) error {
	ctx, cancel := context.WithTimeout(context.Background(), registrationLimit)
	defer cancel()
	credentials := grpc.WithTransportCredentials(insecure.NewCredentials())
	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, credentials)
	if err != nil {
		return fmt.Errorf("failed to connect to kubelet at %s: %w", api.KubeletSocket, err)
	}
	defer kubelet.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: resource}
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("failed to register %s with kubelet: %w", resource, err)
	}
	return nil
}
