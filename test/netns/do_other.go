//go:build !linux

package netns

import "errors"

// Do needs Linux.
func (n Namespace) Do(func() error) error { return errors.ErrUnsupported }

// In needs Linux.
func In(string, func() error) error { return errors.ErrUnsupported }
