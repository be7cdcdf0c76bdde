package lane

// NoRoom is how many lanes wait until fewer requests are at the device.
func (g *Group) NoRoom() int { return g.noRoom.Len() }
