package rig

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// A Need is a file of the host that the rig runs, or copies into the guest.
type Need struct {
	Name    string // of a program, or the pattern of a path
	Package string // of Debian
}

// hostNeeds are for the host.
var hostNeeds = []Need{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"apt-get", "apt"},
	{"apt-cache", "apt"},
	{"dpkg", "dpkg"},
	{"ldconfig", "libc-bin"},
	{"xz", "xz-utils"},
}

// guestNeeds are for the image.
var guestNeeds = []Need{
	{"bash", "bash"},
	{"ip", "iproute2"},
	{"rdma", "iproute2"},
	{"tcpdump", "tcpdump"},
	{"ibv_asyncwatch", "ibverbs-utils"},
	{"ibv_devices", "ibverbs-utils"},
	{"ibv_devinfo", "ibverbs-utils"},
	{"ibv_rc_pingpong", "ibverbs-utils"},
	{"ibv_srq_pingpong", "ibverbs-utils"},
	{"ibv_uc_pingpong", "ibverbs-utils"},
	{"ibv_ud_pingpong", "ibverbs-utils"},
	{"cmtime", "rdmacm-utils"},
	{"mckey", "rdmacm-utils"},
	{"rdma_client", "rdmacm-utils"},
	{"rdma_server", "rdmacm-utils"},
	{"rdma_xclient", "rdmacm-utils"},
	{"rdma_xserver", "rdmacm-utils"},
	{"rcopy", "rdmacm-utils"},
	{"rping", "rdmacm-utils"},
	{"rstream", "rdmacm-utils"},
	{"ucmatose", "rdmacm-utils"},
	{"udaddy", "rdmacm-utils"},
	{"ib_atomic_bw", "perftest"},
	{"ib_atomic_lat", "perftest"},
	{"ib_read_bw", "perftest"},
	{"ib_read_lat", "perftest"},
	{"ib_send_bw", "perftest"},
	{"ib_send_lat", "perftest"},
	{"ib_write_bw", "perftest"},
	{"ib_write_lat", "perftest"},
	{"iperf", "iperf"},
	{"memcached", "memcached"},
	{"nc.openbsd", "netcat-openbsd"},
	{"nc.traditional", "netcat-traditional"},
}

var (
	busyboxNeed  = Need{"busybox", "busybox-static"}
	providerNeed = Need{"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so", "ibverbs-providers"}
	preloadNeed  = Need{libDir + "/rsocket/librspreload.so.1", "librdmacm1"}
)

// Missing returns the needs that this machine lacks, each once.
func Missing() []Need {
	var missing []Need
	for _, need := range append(append([]Need{}, hostNeeds...), guestNeeds...) {
		if _, err := program(need.Name); err != nil {
			missing = append(missing, need)
		}
	}
	if _, err := staticBusybox(); err != nil {
		missing = append(missing, busyboxNeed)
	}
	if _, err := provider(); err != nil {
		missing = append(missing, providerNeed)
	}
	if !exists(preloadNeed.Name) {
		missing = append(missing, preloadNeed)
	}
	return missing
}

// Available returns nil if the rig can run, and otherwise an [ErrUnavailable] that names what
// is missing. The kernel may still have to be fetched.
func Available() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: the rig copies programs from its host into the guest, so it needs Linux on amd64, and this is %s on %s",
			ErrUnavailable, runtime.GOOS, runtime.GOARCH)
	}
	missing := Missing()
	if len(missing) == 0 {
		return nil
	}
	var what []string
	for _, need := range missing {
		what = append(what, fmt.Sprintf("%s (Debian package %s)", need.Name, need.Package))
	}
	return fmt.Errorf("%w: missing %s; scripts/rig-setup.sh installs them", ErrUnavailable, strings.Join(what, ", "))
}

// program finds a program as a shell of root would, since not every user's path has the
// administrators' folders.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// staticBusybox returns a statically linked busybox, which runs without libraries.
func staticBusybox() (string, error) {
	path, err := program(busyboxNeed.Name)
	if err != nil {
		return "", err
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	for _, segment := range f.Progs {
		if segment.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is not statically linked", path)
		}
	}
	return path, nil
}

// provider returns the part of rxe that libibverbs loads.
func provider() (string, error) {
	found, err := filepath.Glob(providerNeed.Name)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", &os.PathError{Op: "find", Path: providerNeed.Name, Err: os.ErrNotExist}
	}
	return found[len(found)-1], nil
}
