package dma

import "time"

// SetDrainTimeout limits how long a device may take to give back copies.
func (c *Context) SetDrainTimeout(d time.Duration) { c.lanes.Limit(d, c.control.Wake) }
