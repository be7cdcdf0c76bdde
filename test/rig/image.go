package rig

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

//go:embed guest/init
var guestInit string

//go:embed guest/await-port
var guestAwaitPort string

//go:embed guest/prelude
var guestPrelude string

// An image is a kernel and the first part of the guest's root file system. It is the same for
// all jobs.
type image struct {
	kernel kernel
	file   string // a cpio archive
	tree   *tree
	libs   libraries
}

// cacheDir returns the folder for files that can be made again. Each source tree has its own.
func cacheDir() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".build", "rig")
	return cache, os.MkdirAll(cache, 0o755)
}

// moduleRoot returns the folder with go.mod: the current one, or one above it.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for !exists(filepath.Join(dir, "go.mod")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%w: the current folder is not in the project's source tree", ErrUnavailable)
		}
		dir = parent
	}
	return dir, nil
}

// Prepare fetches the kernel and builds the image, if necessary. The first time it needs a
// network and takes about ten seconds. Run calls it.
func Prepare(ctx context.Context) error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "image.lock"))
	if err != nil {
		return fmt.Errorf("wait for another process to build the image: %w", err)
	}
	defer unlock()
	_, err = findImage(ctx, cache)
	return err
}

// findImage takes the image from the cache, unless a source of it has changed. The caller
// holds the image's lock.
func findImage(ctx context.Context, cache string) (image, error) {
	k, err := findKernel(ctx, cache)
	if err != nil {
		return image{}, err
	}
	libs, err := findLibraries(ctx)
	if err != nil {
		return image{}, err
	}
	t, err := imageTree(ctx, k, libs)
	if err != nil {
		return image{}, fmt.Errorf("collect the guest's files: %w", err)
	}
	sum := sha256.New()
	t.describe(sum)
	img := image{
		kernel: k,
		file:   filepath.Join(cache, fmt.Sprintf("image-%x.cpio", sum.Sum(nil)[:8])),
		tree:   t,
		libs:   libs,
	}
	if exists(img.file) {
		return img, nil
	}

	old, err := filepath.Glob(filepath.Join(cache, "image-*"))
	if err != nil {
		return image{}, err
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return image{}, err
		}
	}
	part := img.file + ".part"
	f, err := os.Create(part)
	if err != nil {
		return image{}, err
	}
	defer f.Close()
	if err := archiveTo(f, t); err != nil {
		return image{}, err
	}
	if err := f.Close(); err != nil {
		return image{}, err
	}
	return img, os.Rename(part, img.file)
}

func archiveTo(w io.Writer, t *tree) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	if err := t.archive(buffered); err != nil {
		return err
	}
	return buffered.Flush()
}

// imageTree lays out the guest. All programs are in /bin. A real program takes precedence over
// busybox's.
func imageTree(ctx context.Context, k kernel, libs libraries) (*tree, error) {
	t := newTree(nil)
	for _, dir := range []string{"/proc", "/sys", "/dev", "/root", "/results", "/run", "/var", "/usr", libDir} {
		t.mkdir(dir)
	}
	t.put("/tmp", entry{mode: os.ModeDir | 0o777})
	t.link("/usr/bin", "../bin")
	t.link("/usr/sbin", "../bin")
	t.link("/sbin", "bin")
	t.link("/var/run", "../run")
	t.write("/init", 0o755, guestInit)
	t.write("/bin/await-port", 0o755, guestAwaitPort)
	t.write("/rig/prelude", 0o644, guestPrelude)
	t.write("/rig/modules", 0o644, strings.Join(modules, "\n")+"\n")

	// tcpdump switches to the user of its name, who could not write to /results.
	t.write("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/bash\ntcpdump:x:0:0::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n")
	t.write("/etc/group", 0o644, "root:x:0:\ntcpdump:x:0:\nnogroup:x:65534:\n")
	t.write("/etc/hosts", 0o644, "127.0.0.1 localhost\n::1 localhost\n10.0.0.1 rxe\n10.0.0.2 soft\n")

	// Only rxe's provider is included: in every process, libibverbs would try all that it
	// finds.
	so, err := provider()
	if err != nil {
		return nil, err
	}
	if err := t.copy(path.Join(libDir, "libibverbs", filepath.Base(so)), so); err != nil {
		return nil, err
	}
	if driver := "/etc/libibverbs.d/rxe.driver"; exists(driver) {
		if err := t.copy(driver, driver); err != nil {
			return nil, err
		}
	}
	if err := t.copy(preloadNeed.Name, preloadNeed.Name); err != nil {
		return nil, err
	}
	for _, need := range guestNeeds {
		file, err := program(need.Name)
		if err != nil {
			return nil, err
		}
		if err := t.copy(path.Join("/bin", need.Name), file); err != nil {
			return nil, err
		}
	}
	// The C library loads this library when a thread is cancelled.
	if file, ok := libs["libgcc_s.so.1"]; ok {
		if err := t.copy(path.Join(libDir, "libgcc_s.so.1"), file); err != nil {
			return nil, err
		}
	}
	if err := libs.addNeeded(t); err != nil {
		return nil, err
	}

	busybox, err := staticBusybox()
	if err != nil {
		return nil, err
	}
	if err := t.copy("/bin/busybox", busybox); err != nil {
		return nil, err
	}
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list busybox's applets: %w", err)
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if name := path.Join("/bin", applet); !t.has(name) {
			t.link(name, "busybox")
		}
	}
	return t, t.copy("/lib/modules", k.modules())
}

// jobTree returns the second part of the root file system: the job's files that are not in the
// image.
func jobTree(img image, job Job) (*tree, error) {
	t := newTree(img.tree)
	for guest, host := range job.Files {
		if !path.IsAbs(guest) || path.Clean(guest) != guest || guest == "/" {
			return nil, fmt.Errorf("%w: %q in Files is not the absolute path of a file in the guest", ErrJob, guest)
		}
		if err := t.copy(guest, host); err != nil {
			return nil, fmt.Errorf("%w: bring %q into the guest: %w", ErrJob, guest, err)
		}
	}
	if err := img.libs.addNeeded(t); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJob, err)
	}
	t.write("/rig/script", 0o644, job.Script)
	return t, nil
}
