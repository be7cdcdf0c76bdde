package pair

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

var (
	dataLine      = regexp.MustCompile(`\((\d+) bytes, CRC-32C ([0-9a-f]{8})\)`)
	immediateLine = regexp.MustCompile(`immediate 0x[0-9a-f]{8}`)
	operationLine = regexp.MustCompile(`(?m)^found \d+`)
)

// atomicSize is the number of bytes that an atomic operates on.
const atomicSize = 8

// Bytes returns the number of bytes that were transferred, as the requester prints it.
func (r *Result) Bytes() int {
	if n := len(operationLine.FindAllString(r.Requester.Stdout, -1)); n > 0 {
		return n * atomicSize
	}
	total := 0
	for _, m := range dataLine.FindAllStringSubmatch(r.Requester.Stdout, -1) {
		n, _ := strconv.Atoi(m[1])
		total += n
	}
	return total
}

// Verify checks that both programs succeeded, that both saw the same data, that the number of
// transfers is the pair's, and that the data of a workload has the requested size.
func (r *Result) Verify() error {
	p := r.pair
	if r.Requester.Code != 0 || r.Responder.Code != 0 {
		return fmt.Errorf("%s ended with code %d, %s with code %d", p.Requester, r.Requester.Code, p.Responder, r.Responder.Code)
	}
	ours, theirs := dataLine.FindAllString(r.Requester.Stdout, -1), dataLine.FindAllString(r.Responder.Stdout, -1)
	slices.Sort(ours)
	slices.Sort(theirs)
	switch {
	case len(ours) != p.Messages:
		return fmt.Errorf("%s moved data %d times, not %d times", p.Requester, len(ours), p.Messages)
	case !slices.Equal(ours, theirs):
		return fmt.Errorf("%s printed %q, %s printed %q", p.Requester, ours, p.Responder, theirs)
	case !slices.Equal(immediateLine.FindAllString(r.Requester.Stdout, -1), immediateLine.FindAllString(r.Responder.Stdout, -1)):
		return errors.New("the immediate values differ")
	}
	if want := p.Messages * r.size; p.Operation != "" && !p.Values && r.Bytes() != want {
		return fmt.Errorf("%d bytes were moved, not %d", r.Bytes(), want)
	}
	return nil
}
