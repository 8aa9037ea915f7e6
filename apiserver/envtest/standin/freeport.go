package standin

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const (
	// firstPort is above the ports of Kubernetes' components (10248 to 10259).
	firstPort = 11_000
	// blockSize times blockCount ends at 16,000, where gVisor's range of ports for outgoing
	// connections begins. Linux's begins at 32,768, and macOS's at 49,152.
	blockSize  = 100
	blockCount = 50
)

// reserved is the state of this process. It is global because ports are: all packages of a
// test binary share them.
var reserved struct {
	sync.Mutex
	blocks []net.Listener // on the first ports of all blocks of this process; the last one is the current
	next   int            // the port of the current block that is handed out next
	end    int            // the first port after the current block
}

// TakePort returns a port of 127.0.0.1 that nobody listens on, in decimal. No other call returns
// it, in this process or in another one that uses this package, until this process ends.
func TakePort() (string, error) {
	reserved.Lock()
	defer reserved.Unlock()
	for {
		for ; reserved.next < reserved.end; reserved.next++ {
			if l, err := freeportListen(reserved.next); err == nil {
				port := reserved.next
				reserved.next++
				return strconv.Itoa(port), l.Close()
			}
		}
		if err := reserveBlock(); err != nil {
			return "", err
		}
	}
}

// reserveBlock finds a block that no process holds.
func reserveBlock() error {
	var err error
	begin := rand.IntN(blockCount)
	for i := range blockCount {
		first := firstPort + (begin+i)%blockCount*blockSize
		var l net.Listener
		if l, err = freeportListen(first); err == nil {
			reserved.blocks = append(reserved.blocks, l)
			reserved.next, reserved.end = first+1, first+blockSize
			return nil
		}
	}
	return fmt.Errorf("other processes hold all ports from %d to %d: %w", firstPort, firstPort+blockCount*blockSize-1, err)
}

func freeportListen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
