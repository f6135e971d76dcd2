package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const gpuPrefix = "/dev/nvidia"

// Control devices that every process with a GPU opens, and those that exist with some drivers.
var controlDevices = []string{
	"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
}

// Patterns of the libraries that CUDA, NCCL and nvidia-smi load.
var libraryPatterns = []string{
	"libcuda.so*", "libcudadebugger.so*", "libnvidia-cfg.so*", "libnvidia-gpucomp.so*",
	"libnvidia-ml.so*", "libnvidia-nvvm*.so*", "libnvidia-ptxjitcompiler.so*",
}

// gpu is a device that one container owns at a time.
type gpu struct {
	id       string // NVIDIA's minor number, an index of CUDA in the order of the PCI bus
	hostPath string
	path     string // in the container
}

// driver is what every container with GPUs has.
type driver struct {
	devices []*api.DeviceSpec
	mounts  []*api.Mount
}

func device(hostPath, path string) *api.DeviceSpec {
	return &api.DeviceSpec{HostPath: hostPath, ContainerPath: path, Permissions: "rw"}
}

// standInGPUs have the names of GPUs, and reads and writes are those of /dev/null.
func standInGPUs(number int) []gpu {
	var gpus []gpu
	for index := range number {
		id := strconv.Itoa(index)
		gpus = append(gpus, gpu{id: id, hostPath: os.DevNull, path: gpuPrefix + id})
	}
	return gpus
}

// repeated lets several containers use each GPU in turns, as the time slicing of NVIDIA's plugin
// does, with its names of replicas: the GPU's, "::" and a number.
func repeated(gpus []gpu, replicas int) []gpu {
	if replicas == 1 {
		return gpus
	}
	var all []gpu
	for _, one := range gpus {
		for replica := range replicas {
			copied := one
			copied.id = fmt.Sprintf("%s::%d", one.id, replica)
			all = append(all, copied)
		}
	}
	return all
}

func installedGPUs() ([]gpu, error) {
	paths, err := filepath.Glob(gpuPrefix + "[0-9]*")
	if err != nil {
		return nil, err
	}
	var gpus []gpu
	for _, path := range paths {
		id := strings.TrimPrefix(path, gpuPrefix)
		if _, err := strconv.Atoi(id); err == nil {
			gpus = append(gpus, gpu{id: id, hostPath: path, path: path})
		}
	}
	if len(gpus) == 0 {
		return nil, errors.New("no GPU at /dev/nvidia0: load NVIDIA's driver, or pass -stand-ins")
	}
	slices.SortFunc(gpus, func(a, b gpu) int {
		return cmp.Or(cmp.Compare(len(a.id), len(b.id)), strings.Compare(a.id, b.id))
	})
	return gpus, nil
}

// findDriver returns the control devices, and the libraries in the first folder with libcuda.so.1.
// A link is mounted as the file that it names.
func findDriver(folders []string, target string) (driver, error) {
	var found driver
	for _, path := range controlDevices {
		if _, err := os.Stat(path); err == nil {
			found.devices = append(found.devices, device(path, path))
		}
	}
	index := slices.IndexFunc(folders, func(folder string) bool {
		_, err := os.Stat(filepath.Join(folder, "libcuda.so.1"))
		return err == nil
	})
	if index < 0 {
		return driver{}, fmt.Errorf("libcuda.so.1 is in none of %s: name the driver's folder with "+
			"-libraries", strings.Join(folders, ", "))
	}
	folder := folders[index]
	for _, pattern := range libraryPatterns {
		if err := found.mount(filepath.Join(folder, pattern), target); err != nil {
			return driver{}, err
		}
	}
	monitor := filepath.Join(filepath.Dir(folder), "bin", "nvidia-smi")
	if _, err := os.Stat(monitor); err != nil {
		monitor = "/usr/bin/nvidia-smi"
	}
	return found, found.mount(monitor, filepath.Join(filepath.Dir(target), "bin"))
}

// mount adds the files that match a pattern to a folder of containers.
func (d *driver) mount(pattern, target string) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range paths {
		file, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("failed to resolve a file of the driver: %w", err)
		}
		d.mounts = append(d.mounts, &api.Mount{
			HostPath:      file,
			ContainerPath: filepath.Join(target, filepath.Base(path)),
			ReadOnly:      true,
		})
	}
	return nil
}
