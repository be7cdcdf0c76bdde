package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/report"
)

// Run runs bench plot: it draws reports of verbena perf -json, each file as a series of its own.
//
//	go run . plot OUT.svg A.json B.json
func Run(_ context.Context, args []string) (err error) {
	if len(args) < 2 || filepath.Ext(args[0]) != ".svg" {
		return errors.New("name an output file that ends in .svg, then the reports of verbena perf -json")
	}
	var sets []Set
	for _, name := range args[1:] {
		list, err := report.ReadFiles([]string{name})
		if err != nil {
			return err
		}
		s := Set{Reports: list}
		if len(args) > 2 {
			s.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		}
		sets = append(sets, s)
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	if err := errors.Join(SVG(f, sets), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("draw %s: %w", args[0], err), os.Remove(args[0]))
	}
	return nil
}
