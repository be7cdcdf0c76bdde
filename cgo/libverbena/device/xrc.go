//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

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
	inode *inode   // nil: it has no file
	file  *os.File // keeps the inode, so that no other file gets its number
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
	users   int // the queues and queue pairs that were made and opened by it
}

var openXRCDomains table[xrcDomain]

func (x *xrcDomain) owner() *deviceContext { return x.context }

func (x *xrcDomain) close() error {
	x.all.Lock()
	defer x.all.Unlock()
	if x.users > 0 {
		return fmt.Errorf("close XRC domain: %d queues and queue pairs are still open: %w", x.users, verbs.ErrInUse)
	}
	if x.opens == 1 {
		if err := x.end(); err != nil {
			return err
		}
	}
	x.opens--
	return nil
}

// end ends the domain when nobody has it open any more.
func (x *sharedXRC) end() error {
	if err := x.Close(); err != nil {
		return err
	}
	if x.inode != nil {
		delete(x.all.byInode, *x.inode)
		_ = x.file.Close()
	}
	return nil
}

// use counts a queue or a queue pair that comes or goes.
func (x *xrcDomain) use(n int) {
	x.all.Lock()
	defer x.all.Unlock()
	x.users += n
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
			held, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				_ = v.Close()
				return errnoOf(err)
			}
			shared.file = os.NewFile(uintptr(held), "XRC domain")
			if all.byInode == nil {
				all.byInode = make(map[inode]*sharedXRC)
			}
			all.byInode[*file] = shared
		}
	}
	handle := openXRCDomains.add(&xrcDomain{sharedXRC: shared, context: c})
	if handle == 0 {
		if shared.opens == 0 {
			_ = shared.end()
		}
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
			return createQP(x.context.device.DefaultPD(), verbs.QPInit{Type: verbs.XRCRecv, XRCDomain: x.XRCDomain})
		}
	}
	p, err := x.open(uint32(number), create)
	if err != nil {
		return errnoOf(err)
	}
	x.use(1)
	closeShared := func() error {
		err := x.sharedXRC.close(p)
		if err == nil {
			x.use(-1)
		}
		return err
	}
	return registerQP(&queuePair{QP: p.QP, context: x.context, c: qp, closeShared: closeShared}, made)
}
