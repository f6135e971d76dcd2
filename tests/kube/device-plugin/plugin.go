package main

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin answers a kubelet for one resource.
type plugin struct {
	api.UnimplementedDevicePluginServer
	gpus   []gpu
	driver driver
}

func newPlugin(standIns, replicas int, folders []string, target string) (*plugin, error) {
	if standIns > 0 {
		return &plugin{gpus: repeated(standInGPUs(standIns), replicas)}, nil
	}
	gpus, err := installedGPUs()
	if err != nil {
		return nil, err
	}
	driver, err := findDriver(folders, target)
	if err != nil {
		return nil, err
	}
	return &plugin{gpus: repeated(gpus, replicas), driver: driver}, nil
}

func (p *plugin) String() string {
	return fmt.Sprintf("%d devices, %d libraries of the driver", len(p.gpus), len(p.driver.mounts))
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (
	*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once: their health is not watched.
func (p *plugin) ListAndWatch(
	_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var devices []*api.Device
	for _, gpu := range p.gpus {
		devices = append(devices, &api.Device{ID: gpu.id, Health: api.Healthy})
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (
	*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer, err := p.allocate(container.DevicesIds)
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}

// allocate describes what a container with the GPUs of these names has.
func (p *plugin) allocate(ids []string) (*api.ContainerAllocateResponse, error) {
	answer := &api.ContainerAllocateResponse{
		Mounts:  p.driver.mounts,
		Devices: append([]*api.DeviceSpec{}, p.driver.devices...),
	}
	var numbers []string
	for _, id := range ids {
		gpu, err := p.find(id)
		if err != nil {
			return nil, err
		}
		answer.Devices = append(answer.Devices, device(gpu.hostPath, gpu.path))
		numbers = append(numbers, strings.TrimPrefix(gpu.path, gpuPrefix))
	}
	answer.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(numbers, ",")}
	return answer, nil
}

func (p *plugin) find(id string) (gpu, error) {
	for _, gpu := range p.gpus {
		if gpu.id == id {
			return gpu, nil
		}
	}
	return gpu{}, fmt.Errorf("kubelet requested the unknown device %s", id)
}
