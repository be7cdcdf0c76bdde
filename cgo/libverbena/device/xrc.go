//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// inode is the file by which contexts share an XRC domain.
type inode struct{ device, number uint64 }

// xrcDomains are the XRC domains of a device.
type xrcDomains struct {
	sync.Mutex                      // guards the rest, and what the domains share
	byInode    map[inode]*sharedXRC // those with a file
}

// sharedXRC is an XRC domain, for all that have opened it.
type sharedXRC struct {
	verbs.XRCDomain
	all   *xrcDomains
	inode *inode // nil: it has no file
	opens int
	pairs map[uint32]*sharedPair // receive queue pairs, by number
}

// sharedPair is an XRC receive queue pair, for all that have opened it.
type sharedPair struct {
	verbs.QP
	opens int
}

// xrcDomain is an XRC domain as one ibv_open_xrcd has opened it.
type xrcDomain struct {
	*sharedXRC
	context *deviceContext
}

var openXRCDomains table[xrcDomain]

func (x *xrcDomain) owner() *deviceContext { return x.context }

func (x *xrcDomain) close() error {
	x.all.Lock()
	defer x.all.Unlock()
	if x.opens == 1 {
		if err := x.Close(); err != nil {
			return err
		}
		if x.inode != nil {
			delete(x.all.byInode, *x.inode)
		}
	}
	x.opens--
	return nil
}

// open adds a queue pair to the domain, or opens one of its.
func (x *sharedXRC) open(number uint32, create func() (verbs.QP, error)) (*sharedPair, error) {
	x.all.Lock()
	defer x.all.Unlock()
	p := x.pairs[number]
	if create != nil {
		v, err := create()
		if err != nil {
			return nil, err
		}
		p = &sharedPair{QP: v}
		x.pairs[v.Num()] = p
	}
	if p == nil {
		return nil, fmt.Errorf("open queue pair %#x: the XRC domain has no such receive queue pair: %w", number, verbs.ErrInvalid)
	}
	p.opens++
	return p, nil
}

// close closes the queue pair, unless others have it open.
func (x *sharedXRC) close(p *sharedPair) error {
	x.all.Lock()
	defer x.all.Unlock()
	if p.opens == 1 {
		if err := p.Close(); err != nil {
			return err
		}
		delete(x.pairs, p.Num())
	}
	p.opens--
	return nil
}

//export vd_open_xrcd
func vd_open_xrcd(context C.uint32_t, fd, oflags C.int, to *C.uint32_t) C.int {
	c := contexts.get(uint32(context))
	if c == nil {
		return noSuch
	}
	all := &c.device.xrc
	all.Lock()
	defer all.Unlock()
	var file *inode
	var shared *sharedXRC
	if fd != -1 {
		var s syscall.Stat_t
		if err := syscall.Fstat(int(fd), &s); err != nil {
			return errnoOf(err)
		}
		file = &inode{uint64(s.Dev), s.Ino}
		shared = all.byInode[*file]
		switch { // as the kernel does
		case shared == nil && oflags&syscall.O_CREAT == 0:
			return errnoOf(fmt.Errorf("open XRC domain: its file has none, and oflags lack O_CREAT: %w", syscall.EAGAIN))
		case shared != nil && oflags&syscall.O_EXCL != 0:
			return errnoOf(fmt.Errorf("open XRC domain: its file has one already, and oflags have O_EXCL: %w", verbs.ErrInvalid))
		}
	}
	if shared == nil {
		v, err := c.device.Device.(verbs.XRCDevice).OpenXRCDomain()
		if err != nil {
			return errnoOf(err)
		}
		shared = &sharedXRC{XRCDomain: v, all: all, inode: file, pairs: make(map[uint32]*sharedPair)}
		if file != nil {
			if all.byInode == nil {
				all.byInode = make(map[inode]*sharedXRC)
			}
			all.byInode[*file] = shared
		}
	}
	handle := openXRCDomains.add(&xrcDomain{shared, c})
	if handle == 0 {
		return errnoOf(verbs.ErrLimit)
	}
	shared.opens++
	c.add(C.VD_XRCD, handle)
	*to = C.uint32_t(handle)
	return 0
}

// vd_open_xrc_qp makes an XRC receive queue pair, or opens the one with that number.
//
//export vd_open_xrc_qp
func vd_open_xrc_qp(xrcd C.uint32_t, qp unsafe.Pointer, number C.uint32_t, made *C.struct_vd_new_object) C.int {
	x := openXRCDomains.get(uint32(xrcd))
	if x == nil {
		return noSuch
	}
	var create func() (verbs.QP, error)
	if number == 0 {
		create = func() (verbs.QP, error) {
			v, err := x.context.device.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.XRCRecv, XRCDomain: x.XRCDomain})
			if err == nil {
				v.(cverbs.QP).ActAsAdapter()
			}
			return v, err
		}
	}
	p, err := x.open(uint32(number), create)
	if err != nil {
		return errnoOf(err)
	}
	return registerQP(&queuePair{QP: p.QP, context: x.context, c: qp, closeShared: func() error { return x.sharedXRC.close(p) }}, made)
}
