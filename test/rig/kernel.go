package rig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/internal/process"
)

// modules are loaded when the guest starts, in this order, after the modules that they depend
// on. rxe needs crc32_generic to add a link, and does not declare it.
var modules = []string{
	"virtio_pci", "virtio_console", "9p", "9pnet_virtio",
	"crc32_generic", "crc32_pclmul",
	"veth", "dummy",
	"ib_uverbs", "rdma_ucm", "rdma_rxe",
	"vgem", // provides /dev/dri/card0, for dma-bufs
}

// A kernel is a folder of the cache: the file vmlinux, and the folder modules for the guest's
// /lib/modules.
type kernel struct {
	dir     string
	version string
}

func (k kernel) vmlinux() string { return filepath.Join(k.dir, "vmlinux") }
func (k kernel) modules() string { return filepath.Join(k.dir, "modules") }

// findKernel takes the kernel from the cache. Otherwise it fetches the kernel of Debian's
// package linux-image-amd64, and installs nothing.
func findKernel(ctx context.Context, cache string) (kernel, error) {
	// Another list of modules needs other files of the package.
	sum := sha256.Sum256([]byte(strings.Join(modules, " ")))
	k := kernel{dir: filepath.Join(cache, fmt.Sprintf("kernel-%x", sum[:4]))}
	if !exists(k.dir) {
		if err := fetchKernel(ctx, cache, k.dir); err != nil {
			return kernel{}, err
		}
	}
	versions, err := os.ReadDir(k.modules())
	if err != nil || len(versions) != 1 {
		return kernel{}, fmt.Errorf("the kernel in %s is damaged; remove that folder", k.dir)
	}
	k.version = versions[0].Name()
	return k, nil
}

func fetchKernel(ctx context.Context, cache, dir string) error {
	for _, stale := range []string{"fetch-*", "kernel-*"} {
		old, err := filepath.Glob(filepath.Join(cache, stale))
		if err != nil {
			return err
		}
		for _, folder := range old {
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
		}
	}
	work, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	// If it can, apt-get downloads as another user.
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}

	depends, err := hostCommand(ctx, work, "apt-cache", "depends", "--important", "linux-image-amd64")
	if err != nil {
		return fmt.Errorf("%w: find Debian's kernel: %w; try apt-get update", ErrUnavailable, err)
	}
	_, name, ok := strings.Cut(depends, "Depends: ")
	if !ok {
		return fmt.Errorf("%w: apt has no package linux-image-amd64; the rig uses Debian's kernel", ErrUnavailable)
	}
	name, _, _ = strings.Cut(name, "\n")
	if _, err := hostCommand(ctx, work, "apt-get", "download", name); err != nil {
		return fmt.Errorf("%w: download the kernel: %w; try apt-get update", ErrUnavailable, err)
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s downloaded %d packages, want 1", name, len(debs))
	}
	all := filepath.Join(work, "all")
	if _, err := hostCommand(ctx, work, "dpkg", "-x", debs[0], all); err != nil {
		return fmt.Errorf("unpack the kernel: %w", err)
	}

	picked := filepath.Join(work, "picked")
	if err := pickKernel(all, picked); err != nil {
		return fmt.Errorf("copy the guest's files from %s: %w", name, err)
	}
	return os.Rename(picked, dir)
}

// pickKernel copies the files of the package that the guest needs.
func pickKernel(all, picked string) error {
	images, err := filepath.Glob(filepath.Join(all, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("the package contains %d kernels, want 1", len(images))
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	root := filepath.Join(all, "lib/modules", version)
	if !exists(root) {
		root = filepath.Join(all, "usr/lib/modules", version)
	}

	files, err := moduleFiles(root)
	if err != nil {
		return err
	}
	target := filepath.Join(picked, "modules", version)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	var dep strings.Builder
	closed := map[string][]string{} // dependencies of a module, in the order of loading
	var add func(name string) error
	add = func(name string) error {
		file, ok := files[name]
		if _, done := closed[name]; done || !ok {
			return nil // a missing module is built into the kernel, or loading it fails
		}
		content, err := moduleContent(file)
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(content)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		var first []string
		for _, need := range needs {
			if err := add(need); err != nil {
				return err
			}
			for _, before := range append(slices.Clone(closed[need]), need) {
				if files[before] != "" && !slices.Contains(first, before) {
					first = append(first, before)
				}
			}
		}
		closed[name] = first
		// The format of modules.dep(5): the last module is loaded first.
		fmt.Fprintf(&dep, "%s.ko:", name)
		for _, need := range slices.Backward(first) {
			fmt.Fprintf(&dep, " %s.ko", need)
		}
		dep.WriteByte('\n')
		return os.WriteFile(filepath.Join(target, name+".ko"), content, 0o644)
	}
	for _, name := range modules {
		if err := add(name); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(target, "modules.dep"), []byte(dep.String()), 0o644); err != nil {
		return err
	}
	bare, err := bareKernel(images[0])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(picked, "vmlinux"), bare, 0o644)
}

// bareKernel unpacks a kernel, since unpacking takes seconds on an emulated processor. QEMU
// boots an unpacked kernel as well. The offsets are those of the boot protocol (Linux,
// Documentation/arch/x86/boot.rst). A kernel that is not packed as Debian's is returned
// unchanged.
func bareKernel(file string) ([]byte, error) {
	packed, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(packed) < 0x250 || string(packed[0x202:0x206]) != "HdrS" {
		return nil, fmt.Errorf("%s is not an x86 kernel", file)
	}
	sectors := int(packed[0x1f1])
	start := (sectors+1)*512 + int(binary.LittleEndian.Uint32(packed[0x248:]))
	end := start + int(binary.LittleEndian.Uint32(packed[0x24c:]))
	// The unpacked size follows the packed kernel. xz does not know these bytes.
	if end -= 4; start > end || end > len(packed) || !bytes.HasPrefix(packed[start:end], []byte("\xfd7zXZ\x00")) {
		return packed, nil
	}
	xz := exec.Command("xz", "-dc")
	xz.Stdin = bytes.NewReader(packed[start:end])
	bare, err := xz.Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s with xz: %w", file, err)
	}
	return bare, nil
}

// moduleFiles returns the file of each module, by name.
func moduleFiles(root string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(root, "kernel"), func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = file
		}
		return nil
	})
	return files, err
}

// moduleContent reads a module and unpacks it: some releases of Debian compress modules, and
// busybox cannot load those.
func moduleContent(file string) ([]byte, error) {
	if filepath.Ext(file) == ".xz" {
		return exec.Command("xz", "-dc", file).Output()
	}
	return os.ReadFile(file)
}

// moduleNeeds returns the modules that a module depends on, from its section .modinfo, which
// has strings "key=value", each ended by a NUL.
func moduleNeeds(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("the file has no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if value, ok := strings.CutPrefix(field, "depends="); ok && value != "" {
			names := strings.Split(strings.ReplaceAll(value, "-", "_"), ",")
			return slices.DeleteFunc(names, func(s string) bool { return s == "" }), nil
		}
	}
	return nil, nil
}

func hostCommand(ctx context.Context, dir, name string, args ...string) (string, error) {
	file, err := program(name)
	if err != nil {
		return "", err
	}
	return process.Run(ctx, process.Program{Args: append([]string{file}, args...), Dir: dir})
}
