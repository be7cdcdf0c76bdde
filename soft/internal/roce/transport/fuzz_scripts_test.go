package transport

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// seedScripts are inputs in which the program, the device, or time has a part.
func seedScripts() (all []fuzzScript) {
	for _, a := range []byte{0, seedAdaptive} {
		for _, scene := range []func(fuzzScript) fuzzScript{
			scriptLoad, scriptLoss, scriptSilence, scriptNotReady, scriptStates, scriptReset, scriptRegions, scriptWindows, scriptWatches,
			scriptInline, scriptFaults, scriptGuard, scriptMarks, scriptLarge, scriptPeerGone, scriptRepetitions, scriptSharedQueue, scriptWrong, scriptProbes,
		} {
			all = append(all, scene(fuzzScript{a, 0}), scene(fuzzScript{a, seedMTU4096}))
		}
	}
	return append(all, scriptVast(fuzzScript{0, seedMTU4096 | seedManyReads}), scriptVast(fuzzScript{seedControlled, seedMTU4096 | seedManyReads}),
		scriptLoad(fuzzScript{0, seedNoReads}), scriptLoad(fuzzScript{0, seedNoAnswers}), scriptLoad(fuzzScript{0, seedNothingMay}),
		scriptLoad(fuzzScript{seedNoTimeout, seedManyReads}), scriptSilence(fuzzScript{seedNoTimeout}), scriptWindows(fuzzScript{0, seedNothingMay}))
}

// everything posts one of every operation.
func (s fuzzScript) everything(who, length byte) fuzzScript {
	for op := range verbs.OpBindMW {
		s = s.post(who, op, 0, length, fuzzOpen, 0)
	}
	return s
}

func (s fuzzScript) receives(who byte) fuzzScript {
	for i := range byte(6) {
		s = s.do(stepReceive, who, 0, i&1)
	}
	return s
}

// fresh has all queue pairs connect anew, with receives and nothing else.
func (s fuzzScript) fresh() fuzzScript {
	return s.do(stepModify, atClient, 1, 0).receives(atServer).receives(atClient)
}

func scriptLoad(s fuzzScript) fuzzScript {
	s = s.carry(8).receives(atServer).receives(atClient).everything(atClient, seedThree).carry(8).everything(atServer, seedLong).carry(8)
	s = s.fresh().do(stepBind, atServer, 0, 0, 128, 32).carry(1).post(atClient, verbs.OpSendInvalidate, 0, seedThree, 0, 0).carry(1)
	s = s.post(atClient, verbs.OpRead, 4, seedLong-1, fuzzOpen, 0).post(atClient, verbs.OpWrite, 4, seedWord, fuzzOpen, 0).carry(8)
	s = s.fresh().post(atClient, verbs.OpRead, 0, seedNothing, fuzzOpen, 0).do(stepBind, atClient, 0, 0, 128, 32)
	s = s.post(atClient, verbs.OpRead, 0, seedThree, fuzzOpen, 0).do(stepBind, atClient, 1, 1, 128, 0).do(stepTransmit, atClient, 1).do(stepTransmit, atClient, 1)
	return s.expire(atClient).carry(2).do(stepSet, atClient, 0, 0).carry(2)
}

// scriptLoss loses, repeats and reorders.
func scriptLoss(s fuzzScript) fuzzScript {
	for i := range byte(12) {
		s = s.receives(atServer).post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 0).post(atClient, verbs.OpRead, 0, seedThree, fuzzOpen, 0)
		s = s.do(stepTransmit, atClient, 80).do(stepArrive, atClient, howLost, i).do(stepArrive, atClient, howAgain, i+1).do(stepArrive, atClient, howBECN, 3)
		s = s.do(stepTransmit, atServer, 80).do(stepArrive, atServer, howLost, i).do(stepArrive, atServer, howAgain, i).do(stepArrive, atServer, 0, 2)
		if i%3 == 0 {
			s = s.expire(atClient)
		}
		s = s.carry(1)
	}
	return s.expire(atClient).carry(8)
}

// scriptSilence has a client find out that nobody answers.
func scriptSilence(s fuzzScript) fuzzScript {
	s = s.carry(2).post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 0).post(atClient, verbs.OpRead, 0, seedThree, fuzzOpen, 0)
	for i := range byte(40) {
		s = s.do(stepTransmit, atClient, 80).do(stepSet, atClient, 9, 0).expire(atClient)
		if i == 3 {
			s = s.do(stepSet, atClient, 0, 0)
		}
	}
	return s.carry(1)
}

func scriptNotReady(s fuzzScript) fuzzScript {
	s = s.carry(8)
	for range 4 {
		s = s.post(atClient, verbs.OpSend, 0, seedThree, fuzzOpen, 0)
	}
	for range 12 {
		s = s.carry(1).expire(atClient).do(stepTime, atClient, 2, 28)
	}
	return s.receives(atServer).carry(8).do(stepSet, atClient, 6, 1).post(atClient, verbs.OpSend, 0, seedThree, fuzzOpen, 0).carry(2)
}

func scriptStates(s fuzzScript) fuzzScript {
	s = s.carry(1).do(stepModify, atClient, 3, 0).carry(3).post(atClient, verbs.OpWrite, 0, seedWord, fuzzOpen, 0).carry(1).do(stepModify, atClient, 4, 0).carry(2)
	for x := range byte(4) {
		s = s.do(stepModify, atServer, 7, x).post(atClient, verbs.OpWrite, 0, seedWord, fuzzOpen, 0).carry(1)
	}
	return s.do(stepModify, atClient, 8, 77).do(stepModify, atClient, 2, 0).post(atClient, verbs.OpSend, 0, seedWord, 0, 0).do(stepReceive, atClient, 0, 0).
		do(stepModify, atServer, 2, 0).do(stepTransmit, atClient, 9).do(stepForge, atServer, 0, byte(wire.RCSendOnly), 0, 0, 2, 0, 0, 0)
}

func scriptReset(s fuzzScript) fuzzScript {
	s = s.do(stepTransmit, atClient, 3).do(stepArrive, atClient, 0, 0).do(stepModify, atServer, 0, 5).carry(2).do(stepModify, atOther, 1, 9)
	s = s.receives(atServer).everything(atClient, seedThree).carry(4).do(stepModify, atClient, 5, 0).do(stepReceive, atClient, 0, 0).post(atClient, verbs.OpSend, 0, 2, 0, 0)
	for range 3 {
		s = s.do(stepModify, atClient, 6, 1).do(stepReceive, atClient, 0, 0).carry(1)
	}
	return s.do(stepClose, atServer, 3).do(stepClose, atOther, 1).do(stepModify, atClient, 1, 1).everything(atClient, seedWord).carry(4)
}

// scriptRegions has regions go while they are in use.
func scriptRegions(s fuzzScript) fuzzScript {
	for _, region := range []byte{fuzzOpen, fuzzBox, fuzzResults, fuzzHidden} {
		for who := range byte(2) {
			s = s.do(stepModify, atClient, 1, 1).receives(atServer).receives(atClient)
			s = s.post(atClient, verbs.OpSend, 0, seedThree, 0, 0).post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 0).post(atClient, verbs.OpRead, 0, seedThree, fuzzOpen, 0)
			s = s.post(atClient, verbs.OpFetchAdd, 0, 2, fuzzOpen, 0).do(stepTransmit, atClient, 80).do(stepArrive, atClient, 0, 0)
			s = s.do(stepRegion, who, 0, region).carry(3).do(stepRegion, who, 0, region).carry(1)
		}
		s = s.do(stepModify, atClient, 1, 1).forge(atServer, 0, wire.RCWriteFirst, 0, 0, seedThree, fuzzOpen, 0, 0, seedMTU)
		s = s.do(stepRegion, atServer, 0, region).forge(atServer, 0, wire.RCWriteLast, 0, 0, seedThree, fuzzOpen, 0, 0, 15)
		s = s.do(stepRegion, atServer, 0, region).do(stepModify, atClient, 1, 1)
	}
	return s
}

// scriptWindows binds, uses and takes away.
func scriptWindows(s fuzzScript) fuzzScript {
	s = s.carry(8).receives(atServer)
	for _, key := range []byte{seedWindow, seedWindow1, seedZeroBased, seedWrongKey - 1} {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
			s = s.post(atClient, op, 0, seedWord, key, 1).carry(1).do(stepModify, atClient, 1, 1)
			for i := range byte(3) {
				s = s.do(stepBind, atServer, i&1, []byte{0, 2, 1}[i], 128, 32).carry(1)
			}
		}
	}
	for x := range byte(32) {
		s = s.do(stepBind, atServer, x, x, 8, 4).carry(1)
		if x%4 == 3 {
			s = s.do(stepPost, atServer, x>>2, byte(verbs.OpLocalInvalidate), 1, 0, 0, 0, 0).carry(1).do(stepModify, atServer, 1, 1)
		}
	}
	for i := range byte(3) {
		// Over the open region; it goes in the midst of a write.
		s = s.fresh().do(stepBind, atServer, 0, 4, 128, 128).carry(1).forge(atServer, 0, wire.RCWriteFirst, 0, 0, seedThree, seedWindow, 0, 0, seedMTU)
		switch i {
		case 0:
			s = s.do(stepPost, atServer, 0, byte(verbs.OpLocalInvalidate), 1, 0, 0, 0, 0).carry(1)
		case 1:
			s = s.do(stepWindow, atServer, 0, 0).do(stepWindow, atServer, 0, 0)
		}
		s = s.forge(atServer, 0, wire.RCWriteMiddle, 0, 0, 0, 0, 0, 0, seedMTU).forge(atServer, 0, wire.RCWriteLast, 0, 0, 0, 0, 0, 0, 13)
	}
	s = s.do(stepBind, atServer, 0, 0, 128, 64).carry(1).post(atClient, verbs.OpRead, 0, seedFull, seedWindow, 0).do(stepTransmit, atClient, 80)
	s = s.do(stepArrive, atClient, 0, 0).do(stepWindow, atServer, 0, 0).carry(1).do(stepModify, atServer, 1, 1).do(stepWindow, atServer, 0, 0)
	s = s.do(stepBind, atServer, 0, 0, 128, 64).carry(1).receives(atServer).post(atClient, verbs.OpSendInvalidate, 0, seedWord, 0, 0).carry(1)
	// That of another queue pair.
	s = s.fresh().do(stepBind, atOther, 0, 0, 128, 32).do(stepTransmit, atOther, 1).forge(atServer, 0, wire.RCSendOnlyInvalidate, 0, 0, seedWord, seedWindow, 0, 0)
	s = s.fresh().do(stepBind, atOther, 0, 0, 128, 32).do(stepTransmit, atOther, 1).forge(atServer, 0, wire.RCWriteOnly, 0, 0, seedWord, seedWindow, 0, 0)
	return s.fresh().do(stepBind, atOther, 0, 0, 128, 32).do(stepTransmit, atOther, 1).post(atServer, verbs.OpLocalInvalidate, 0, 0, 0, 0).carry(1)
}

func scriptWatches(s fuzzScript) fuzzScript {
	s = s.carry(3)
	for i := range byte(6) {
		s = s.do(stepWatch, atServer, 0, fuzzOpen, 8*i, 100).post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 4*i).post(atClient, verbs.OpFetchAdd, 0, 0, fuzzOpen, 16).carry(1)
	}
	return s.do(stepWatch, atServer, 1, 2, 0, 0).do(stepWatch, atServer, 1, 0, 0, 0).do(stepRegion, atServer, 0, fuzzOpen).carry(1)
}

func scriptInline(s fuzzScript) fuzzScript {
	s = s.fresh()
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
		for _, length := range []byte{0, 1, 3, seedThree} {
			s = s.post(atClient, op, 8, length, fuzzOpen, 0)
		}
		s = s.carry(2)
	}
	return s
}

// scriptFaults posts what is refused, or fails.
func scriptFaults(s fuzzScript) fuzzScript {
	s = s.fresh()
	for _, length := range []byte{seedTooLong, seedVast, seedLong} {
		for _, flags := range []byte{0, 2, 8, 16, 32, 64, 16 | 32, 128} {
			for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpSend, verbs.OpLocalInvalidate, verbs.OpAtomicWrite} {
				s = s.do(stepPost, atClient, 0, byte(op), flags|1, length, 0, 0, 3)
			}
			s = s.carry(1).do(stepModify, atClient, 4, 0).fresh()
		}
	}
	for how := range byte(4) {
		s = s.do(stepPost, atClient, 16*how+15*(how&1), byte(verbs.OpSend), 1, 2, 0, 0, 0).carry(1)
	}
	for x := range byte(12) {
		s = s.do(stepReceive, atServer, 0, x).do(stepReceive, atServer, 0, x|128).post(atClient, verbs.OpSend, 0, seedThree, 0, 0).carry(1).do(stepModify, atServer, 1, 0)
	}
	for range 20 {
		s = s.post(atClient, verbs.OpSend, 0, 1, 0, 0).do(stepReceive, atServer, 0, 0)
	}
	return s
}

func scriptGuard(s fuzzScript) fuzzScript {
	shut := func() { s = s.do(stepSet, atServer, 7, 0) } // or open
	shut()
	for _, op := range []wire.Opcode{wire.RCWriteOnly, wire.RCReadRequest, wire.RCFetchAdd, wire.RCSendOnlyInvalidate, wire.RCAtomicWrite} {
		for _, key := range []byte{fuzzOpen, seedWindow, seedWrongKey, fuzzReadOnly} {
			s = s.fresh().do(stepBind, atServer, 0, 0, 128, 32).carry(1).forge(atServer, 0, op, 0, 0, seedWord, key, 0, 1)
			shut()
			s = s.forge(atServer, 0, op, 0, 0, seedWord, key, 1, 1)
			shut()
			s = s.forge(atServer, 0, wire.RCWriteOnly, 0, 0, seedWord, key, 2, 1)
		}
	}
	return s
}

// scriptMarks is about congestion.
func scriptMarks(s fuzzScript) fuzzScript {
	s = s.carry(4).receives(atServer)
	for i := range byte(10) {
		s = s.post(atClient, verbs.OpWrite, 0, seedLong, fuzzOpen, 0).post(atClient, verbs.OpRead, 0, seedLong, fuzzOpen, 0).post(atServer, verbs.OpSend, 0, seedLong, fuzzOpen, 0)
		s = s.do(stepTransmit, atClient, 40).do(stepArrive, atClient, howMarked, 0).do(stepArrive, atClient, howBECN, 0).do(stepArrive, atClient, howMarked|howPieces, 0)
		s = s.do(stepTransmit, atServer, 40).do(stepArrive, atServer, howMarked, 0).do(stepArrive, atServer, howBECN, 0)
		s = s.forge(atClient, 0, wire.CNP, 0, 0, 0, 0, 0, 0).forge(atServer, 0, wire.CNP, 0, 0, 0, 0, 0, 0).do(stepTime, atClient, 2, 15+i).expire(atServer).carry(1).expire(atClient)
	}
	return s.do(stepSet, atClient, 2, 0).do(stepSet, atClient, 2, 1).carry(8).expire(atClient).carry(8)
}

// scriptLarge has packets larger than the path MTU, and none, in turns.
func scriptLarge(s fuzzScript) fuzzScript {
	s = s.carry(4).receives(atServer)
	for _, x := range []byte{10, 20, 12, 0} {
		s = s.do(stepSet, atClient, 3, x).do(stepSet, atServer, 3, x).everything(atClient, seedLong).carry(2).do(stepArrive, atClient, howPieces, 0).carry(2)
	}
	s = s.do(stepSet, atClient, 4, 0).do(stepSet, atClient, 5, 9).do(stepModify, atClient, 1, 0)
	for _, op := range []wire.Opcode{wire.RCSendOnly, wire.RCWriteOnly, wire.RCReadResponseOnly, wire.RCReadResponseFirst} {
		s = s.post(atClient, verbs.OpRead, 0, seedLong, fuzzOpen, 0).do(stepTransmit, atClient, 9).forge(byte(op>>3&1)^1, howPieces, op, 0, 0, seedLong, fuzzOpen, 0, 0, seedTwoMTUs)
	}
	return s
}

func scriptPeerGone(s fuzzScript) fuzzScript {
	s = s.do(stepTransmit, atClient, 40).do(stepSet, atClient, 0, 0)
	for range 10 {
		s = s.do(stepTransmit, atClient, 40).do(stepSet, atClient, 0, 0).expire(atClient)
	}
	return s.do(stepSet, atClient, 1, 0).do(stepSet, atServer, 1, 0).do(stepSet, atOther, 1, 0).do(stepSet, atOther, 1, 0)
}

// scriptRepetitions asks again for what was executed, or was not.
func scriptRepetitions(s fuzzScript) fuzzScript {
	read := func(behind int8, length, key, at byte) {
		s = s.forge(atServer, 0, wire.RCReadRequest, 0, behind, length, key, at, 0)
	}
	add := func(behind int8, key, at byte) {
		s = s.forge(atServer, 0, wire.RCFetchAdd, 0, behind, seedWord, key, at, 1)
	}
	s = s.fresh()
	read(0, seedThree, fuzzOpen, 0)
	for _, behind := range []int8{-3, -2, -1, -4, -120} {
		read(behind, seedThree, fuzzOpen, 0)
		read(behind, seedThree+1, fuzzOpen, 0)
		read(behind, seedWord, fuzzOpen, 32)
		read(behind, seedWord, fuzzReadOnly, 0)
		s = s.carry(1)
	}
	add(0, fuzzOpen, 0)
	add(-1, fuzzOpen, 0)
	add(-1, fuzzOpen, 1)
	for _, behind := range []int8{0, -1, -1} {
		s = s.forge(atServer, 0, wire.RCAtomicWrite, 0, behind, seedWord, fuzzOpen, 1, 0).carry(1)
	}
	s = s.forge(atServer, 0, wire.RCAtomicWrite, 0, -1, seedWord, fuzzOpen, 2, 0).forge(atServer, 0, wire.RCWriteOnly, 0, -1, seedWord, fuzzOpen, 1, 0)
	s = s.carry(1).forge(atServer, 0, wire.RCCompareSwap, 0, 0, seedWord, fuzzOpen, 8, 0)
	for range 12 {
		read(0, seedWord, fuzzOpen, 0)
	}
	s = s.carry(1)
	read(0, seedThree, fuzzOpen, 0)
	s = s.do(stepRegion, atServer, 0, fuzzOpen)
	read(-3, seedThree, fuzzOpen, 0)
	return s.carry(1)
}

func scriptSharedQueue(s fuzzScript) fuzzScript {
	s = s.carry(8).receives(atServer).do(stepSet, atServer, 8, 6)
	for range 4 {
		s = s.post(atClient, verbs.OpSend, 0, seedThree, 0, 0).carry(1).forge(atOther, 0, wire.RCSendFirst, 0, 0, seedThree, 0, 0, 0, seedMTU)
	}
	return s.do(stepModify, atOther, 2, 0).do(stepModify, atServer, 5, 0).do(stepClose, atServer, 0)
}

// scriptWrong delivers packets that violate the protocol.
func scriptWrong(s fuzzScript) fuzzScript {
	for _, op := range []wire.Opcode{wire.RCReadRequest, wire.RCFetchAdd, wire.RCWriteMiddle, wire.RCSendFirst} {
		s = s.fresh().forge(atServer, 0, wire.RCWriteFirst, forgeWrongQKey, 0, seedThree, fuzzOpen, 0, 0, seedMTU).forge(atServer, 0, op, 0, 0, seedThree, fuzzOpen, 0, 0, seedMTU)
		s = s.fresh().forge(atServer, 0, op, 0, 0, seedTooLong, fuzzOpen, 3, 0, 0).fresh().forge(atServer, 0, op, 0, 0, seedNothing, fuzzOpen, 0, 0)
		s = s.fresh().forge(atServer, 0, op, 0, 0, seedWord, fuzzOpen, 235, 0)
		s = s.fresh().forge(atServer, 0, wire.RCSendOnly, forgeWrongQKey, 0, seedWord, 0, 0, 0)
	}
	for _, post := range []verbs.Opcode{verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
		for _, op := range []wire.Opcode{wire.RCReadResponseOnly, wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCAtomicAcknowledge, wire.RCAcknowledge} {
			for _, x := range []byte{0, 0x20, 0x21, 0x60, 0x61, 0x63, 0x64} {
				s = s.fresh().post(atClient, post, 0, seedThree, fuzzOpen, 0).post(atClient, verbs.OpSend, 0, seedWord, 0, 0).do(stepTransmit, atClient, 9)
				s = s.forge(atClient, 0, op, 0, int8(x&1), 0, 0, 0, x, 100).forge(atClient, 0, op, 0, 0, 0, 0, 0, x, seedMTU).expire(atClient).carry(1)
			}
		}
	}
	return s
}

// scriptProbes has a client with measured round trips lose one packet, then answers.
func scriptProbes(s fuzzScript) fuzzScript {
	s = s.fresh()
	for i := range byte(16) {
		s = s.post(atClient, verbs.OpWrite, 0, seedWord, fuzzOpen, 0).carry(1).post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 0)
		if i&1 != 0 {
			s = s.post(atClient, verbs.OpRead, 0, seedThree, fuzzOpen, 0)
		}
		s = s.do(stepTransmit, atClient, 80).do(stepArrive, atClient, howLost, i>>1).do(stepArrive, atClient, howLost, 0)
		for range i >> 2 {
			s = s.expire(atClient).do(stepTransmit, atClient, 80)
		}
		s = s.do(stepTime, atClient, 2, 10+i).carry(1).expire(atClient).do(stepTransmit, atClient, 80).do(stepArrive, atClient, howLost, 0).expire(atClient).carry(2)
	}
	for range 9 {
		s = s.post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 0).do(stepTransmit, atClient, 2).do(stepTime, atClient, 2, 12).do(stepTransmit, atClient, 1).expire(atClient).carry(1)
	}
	return s.post(atClient, verbs.OpWrite, 0, seedThree, fuzzOpen, 0).do(stepTransmit, atClient, 80).do(stepTime, atClient, 1, 255).carry(1)
}

// scriptVast asks for more than a silent peer gets.
func scriptVast(s fuzzScript) fuzzScript {
	s = s.do(stepSet, atServer, 3, 20)
	for range 34 {
		s = s.forge(atServer, 0, wire.RCReadRequest, 0, 0, seedVast, fuzzVast, 0, 0)
	}
	s = s.do(stepSet, atServer, 10, 0).forge(atServer, 0, wire.CNP, 0, 0, 0, 0, 0, 0)
	for range 6 {
		s = s.forge(atServer, 0, wire.RCReadRequest, 0, 0, seedVast, fuzzVast, 0, 0).forge(atServer, 0, wire.CNP, 0, 0, 0, 0, 0, 0).do(stepSet, atServer, 10, 0)
	}
	return s.expire(atServer).do(stepTransmit, atServer, 80)
}
