package peers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"

	"github.com/verbena-rdma/verbena/internal/process"
)

// payload is a file to send, and the folder that it is sent to.
type payload struct {
	source, folder string
	size           int64
	sum            []byte
}

func (*payload) measures(f figure) bool { return f.kind == file }
func (*payload) firstCount(figure) int  { return 0 }

// newPayload makes a file that cannot be compressed.
func newPayload(folder string, size int64) (*payload, error) {
	p := &payload{source: filepath.Join(folder, "file"), folder: filepath.Join(folder, "arrived"), size: size}
	f, err := os.OpenFile(p.source, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{}), size)
	p.sum = h.Sum(nil)
	return p, errors.Join(err, f.Close(), os.Mkdir(p.folder, 0o700))
}

// read compares the received file with the sent one, and removes it.
func (p *payload) read(j *job, _ string) (s sample, err error) {
	name := filepath.Join(p.folder, "file")
	f, err := os.Open(name)
	if err != nil {
		return s, err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	if err = errors.Join(err, f.Close(), os.Remove(name)); err == nil && string(h.Sum(nil)) != string(p.sum) {
		err = errors.New("the received file differs from the sent file")
	}
	return sample{mean: float64(p.size) / j.elapsed.Seconds()}, err
}

// verbenaSend is verbena send, with a new receiver for each file.
type verbenaSend struct {
	*payload
	path string
}

func (v verbenaSend) commands(j *job) (server, client process.Program) {
	at := fmt.Sprintf("%v:%d", j.server, j.port)
	server.Args = []string{v.path, "receive", "-once", "-l", at, v.folder}
	client.Args = []string{v.path, "send", "-q", v.source, at}
	return server, client
}

// scp is scp to an sshd with keys of its own, in which only this user can log in.
type scp struct {
	*payload
	sshd, scp, user string
	keys            string // folder of keys and configuration
	madeRunFolder   bool
}

// sshConfig is the complete sshd_config(5), but for address and port.
const sshConfig = `HostKey %[1]q
AuthorizedKeysFile %[2]q
AllowUsers %[3]s
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
PrintMotd no
Subsystem sftp internal-sftp
`

const (
	// hostAlias stands for address and port in known_hosts.
	hostAlias = "verbena-bench"
	// runFolder has to exist if root runs sshd. Debian's service for sshd makes it.
	runFolder = "/run/sshd"
)

func newSCP(ctx context.Context, p *payload, keys string) (s *scp, err error) {
	s = &scp{payload: p, keys: keys}
	find := func(program string, path *string) error {
		var err error
		for _, name := range []string{program, "/usr/sbin/" + program, "/usr/local/sbin/" + program} {
			if *path, err = exec.LookPath(name); err == nil {
				return nil
			}
		}
		return fmt.Errorf("there is no %s; install the Debian packages openssh-server and openssh-client (scripts/setup.sh scp)", program)
	}
	keygen := ""
	if err := errors.Join(find("sshd", &s.sshd), find("scp", &s.scp), find("ssh-keygen", &keygen)); err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	s.user = me.Username
	if err := os.Mkdir(keys, 0o700); err != nil {
		return nil, err
	}
	for _, key := range []string{"host", "client"} {
		if _, err := process.Run(ctx, process.Program{Args: []string{keygen, "-q", "-t", "ed25519", "-N", "", "-f", s.key(key)}}); err != nil {
			return nil, err
		}
	}
	host, err := os.ReadFile(s.key("host.pub"))
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(sshConfig, s.key("host"), s.key("client.pub"), s.user)
	err = errors.Join(os.WriteFile(s.key("known_hosts"), append([]byte(hostAlias+" "), host...), 0o600), os.WriteFile(s.key("config"), []byte(config), 0o600))
	if err == nil && os.Getuid() == 0 {
		switch err = os.Mkdir(runFolder, 0o755); {
		case err == nil:
			s.madeRunFolder = true
		case errors.Is(err, os.ErrExist):
			err = nil
		}
	}
	return s, err
}

func (s *scp) key(name string) string { return filepath.Join(s.keys, name) }

func (s *scp) commands(j *job) (server, client process.Program) {
	server.Args = []string{s.sshd, "-D", "-e", "-f", s.key("config"), "-o", "ListenAddress=" + j.server.String(), "-p", number(j.port)} // sshd requires an absolute path
	client.Args = []string{
		s.scp, "-q", "-F", "none", "-P", number(j.port), "-i", s.key("client"), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
		"-o", "StrictHostKeyChecking=yes", "-o", "HostKeyAlias=" + hostAlias, "-o", "UserKnownHostsFile=" + s.key("known_hosts"),
		s.source, fmt.Sprintf("%s@%v:%s/", s.user, j.server, s.folder),
	}
	return server, client
}

// stays: sshd does not end with a client.
func (*scp) stays() {}

func (s *scp) close() error {
	if s.madeRunFolder {
		return os.Remove(runFolder)
	}
	return nil
}
