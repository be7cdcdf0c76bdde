package result

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteDocument replaces the text between these lines of a document.
const (
	Begin = "<!-- verbena perf peers -->"
	End   = "<!-- verbena perf peers ends -->"
)

// CheckDocument returns an error unless a file has a place for the tables.
func CheckDocument(name string) error {
	_, _, err := split(name)
	return err
}

// split returns the text before and after the place for the tables.
func split(name string) (before, behind string, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return "", "", err
	}
	before, rest, ok := strings.Cut(string(b), Begin+"\n")
	_, behind, ok2 := strings.Cut(rest, End+"\n")
	if !ok || !ok2 {
		return "", "", fmt.Errorf("%s has no place for the tables: it needs the lines %q and %q, in this order", name, Begin, End)
	}
	return before, behind, nil
}

// WriteDocument replaces the tables in a file. Readers never see a half-written file.
func (r *Result) WriteDocument(name string) error {
	before, behind, err := split(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(before + Begin + "\n" + r.Markdown() + End + "\n" + behind)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
