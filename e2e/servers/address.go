package servers

import (
	"errors"
	"net"
)

// MachineAddress returns an IPv4 address of this machine that endpoints may have and that
// proxies may connect to: no loopback and no link-local address.
func MachineAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			return network.IP.String(), nil
		}
	}
	return "", errors.New("this machine has a loopback address only, which no endpoint may have: add another one, for example with `ip address add 192.0.2.1/32 dev lo`")
}
