package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/verbena-rdma/verbena/internal/statsocket"
)

// Serve lets the command verbena stat of the same user, in the same network namespace, see the
// sources, until Close. It opens a Unix socket without a file, checks the user of each peer by
// SO_PEERCRED, and reads nothing. A goroutine of its own asks the sources. Close waits until that has
// ended, but at most for a second. On systems other than Linux, Serve fails with an error that matches
// errors.ErrUnsupported.
func Serve(sources ...Source) (io.Closer, error) {
	s, err := statsocket.Serve(served(slices.Clone(sources)).write)
	if err != nil {
		return nil, fmt.Errorf("metrics: listen for verbena stat: %w", err)
	}
	return s, nil
}

type served []Source

// write writes a statsocket.Snapshot as JSON, object by object. Those of connections, which can be
// many, come without the texts, which would be most of it.
func (list served) write(w io.Writer) error {
	program := ""
	if path, err := os.Executable(); err == nil {
		program = filepath.Base(path)
	}
	name, err := json.Marshal(program)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, `{"Program":%s,"PID":%d,"Objects":[`, name, os.Getpid()); err != nil {
		return err
	}
	separator := ""
	for _, source := range list {
		for o := range source.Metrics(true) {
			if err := writeObject(w, separator, o); err != nil {
				return err
			}
			separator = ","
		}
	}
	_, err = io.WriteString(w, "]}")
	return err
}

func writeObject(w io.Writer, separator string, o Object) error {
	if o.Kind == "connection" || o.Kind == "stream" {
		o.Counters = slices.Clone(o.Counters)
		for i := range o.Counters {
			o.Counters[i].Help = ""
		}
	}
	text, err := json.Marshal(&o)
	if err != nil {
		return err
	}
	_, err = w.Write(append([]byte(separator), text...))
	return err
}
