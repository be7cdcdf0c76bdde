package scp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// sshServer is an sshd for this measurement only, with the files that scp needs to reach it.
type sshServer struct {
	folder           string // for keys and configuration
	port             int
	cipher           string
	user             string
	scp              string
	log              lockedBuffer
	cmd              *exec.Cmd
	ended            chan struct{} // closed when sshd has ended
	err              error         // of sshd's end; written before ended is closed
	createdRunFolder bool
	serverTime       time.Duration // processor time for all files; valid after stop
}

// runFolder has to exist if root runs sshd. Debian's service for sshd makes it.
const runFolder = "/run/sshd"

// configuration is the complete sshd_config(5). Only this user can log in, with a key, from
// this machine.
const configuration = `ListenAddress 127.0.0.1
Port %d
HostKey %q
AuthorizedKeysFile %q
AllowUsers %s
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
PrintMotd no
Subsystem sftp internal-sftp
`

// startSSHD starts an sshd, and returns when it accepts connections.
func startSSHD(ctx context.Context, folder, cipher string) (s *sshServer, err error) {
	sshd, err := find("sshd", "openssh-server")
	if err != nil {
		return nil, err
	}
	keygen, err := find("ssh-keygen", "openssh-client")
	if err != nil {
		return nil, err
	}
	s = &sshServer{folder: folder, cipher: cipher, ended: make(chan struct{})}
	if s.scp, err = find("scp", "openssh-client"); err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	s.user = me.Username
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	for _, key := range []string{"host", "client"} {
		if out, err := exec.CommandContext(ctx, keygen, "-q", "-t", "ed25519", "-N", "", "-f", s.path(key)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("make a key: %w\n%s", err, out)
		}
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	host, err := os.ReadFile(s.path("host.pub"))
	if err != nil {
		return nil, err
	}
	known := fmt.Sprintf("[127.0.0.1]:%d %s", s.port, host)
	config := fmt.Sprintf(configuration, s.port, s.path("host"), s.path("client.pub"), s.user)
	if err := errors.Join(os.WriteFile(s.path("known_hosts"), []byte(known), 0o600), os.WriteFile(s.path("config"), []byte(config), 0o600)); err != nil {
		return nil, err
	}
	if os.Getuid() == 0 {
		switch err := os.Mkdir(runFolder, 0o755); {
		case err == nil:
			s.createdRunFolder = true
		case !errors.Is(err, os.ErrExist):
			return nil, err
		}
	}
	s.cmd = exec.Command(sshd, "-D", "-e", "-f", s.path("config")) // sshd requires an absolute path
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, s.removeRunFolder())
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	if err := s.await(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *sshServer) path(name string) string { return filepath.Join(s.folder, name) }

// find returns the path of a program, or an error that names its package.
func find(program, debianPackage string) (string, error) {
	path, err := exec.LookPath(program)
	for _, folder := range []string{"/usr/sbin", "/usr/local/sbin"} {
		if err == nil {
			return filepath.Abs(path)
		}
		path, err = exec.LookPath(filepath.Join(folder, program))
	}
	if err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is not installed: install the Debian package %s, or run scripts/setup.sh scp", program, debianPackage)
}

// freePort returns a port on which nobody listens now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// await waits until the server accepts connections.
func (s *sshServer) await(ctx context.Context) error {
	for {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-s.ended:
			return errors.New("sshd exited immediately")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *sshServer) send(ctx context.Context, file, folder string) (figures, error) {
	args := []string{
		"-q", "-F", "none", "-P", strconv.Itoa(s.port), "-i", s.path("client"), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
		"-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + s.path("known_hosts"),
	}
	if s.cipher != "" {
		args = append(args, "-c", s.cipher)
	}
	f, err := timed(exec.CommandContext(ctx, s.scp, append(args, file, s.user+"@127.0.0.1:"+folder+"/")...))
	if err != nil {
		return f, fmt.Errorf("%w\nsshd says:\n%s", err, &s.log)
	}
	return f, nil
}

// stop ends the server. Its processes for connections have ended with the connections.
func (s *sshServer) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.ended
	s.serverTime = cpuTime(s.cmd.ProcessState)
	err := s.removeRunFolder()
	if state, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() && s.err != nil {
		err = errors.Join(err, fmt.Errorf("sshd: %w\n%s", s.err, &s.log))
	}
	return err
}

func (s *sshServer) removeRunFolder() error {
	if !s.createdRunFolder {
		return nil
	}
	s.createdRunFolder = false
	return os.Remove(runFolder)
}

// lockedBuffer collects the output of a running program.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
