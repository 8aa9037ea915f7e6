package operator

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"byre/e2e/programs"
)

// patience bounds each wait; a loaded machine is slow.
const patience = 5 * time.Minute

// service is a unit's program that runs.
type service struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the program has ended
	err  error         // how it ended; read after done
}

// install installs byre's package, as packaging/nfpm.yaml says and packaging/scripts do. The
// package is a link to the program.
func (d *dispatcher) install(deb string) error {
	program, err := filepath.EvalSymlinks(deb)
	if err != nil {
		return err
	}
	link := d.host.Path("usr/bin/byre")
	if err := os.RemoveAll(link); err != nil {
		return err
	}
	if err := os.Symlink(program, link); err != nil {
		return err
	}
	for name, to := range map[string]string{"byre.service": "usr/lib/systemd/system/byre.service",
		"byre.env": "etc/byre/byre.env", "config.yaml": "etc/byre/config.yaml"} {
		text, err := os.ReadFile(filepath.Join(programs.Root(), "packaging", "systemd", name))
		if err != nil {
			return err
		}
		to = d.host.Path(to)
		if _, err := os.Stat(to); err == nil && name != "byre.service" {
			continue // the administrator's
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(d.host.replacer.Replace(string(text))), 0o640); err != nil {
			return err
		}
	}
	return d.control([]string{"try-restart", "byre"})
}

// control does what systemctl would.
func (d *dispatcher) control(words []string) error {
	verb, names := words[0], words[1:]
	if verb == "daemon-reload" && len(names) == 0 {
		return nil
	}
	if verb == "enable" && len(names) > 1 && names[0] == "--now" {
		verb, names = "start", names[1:]
	}
	if len(names) != 1 {
		return errors.New("not one unit")
	}
	name := names[0]
	isRunning := d.services[name] != nil && d.services[name].isRunning()
	switch {
	case verb == "start" && isRunning, verb == "stop" && !isRunning, verb == "try-restart" && !isRunning:
		return nil
	case verb == "start":
		return d.start(name)
	case verb == "stop":
		return d.services[name].stop()
	case verb == "try-restart":
		return errors.Join(d.services[name].stop(), d.start(name))
	}
	return errors.New("no test stands in for this verb")
}

// start starts a unit's program. A unit of Type=notify has started when byre is ready.
func (d *dispatcher) start(name string) error {
	unit, err := d.readUnit(name)
	if err != nil {
		return err
	}
	words, err := d.command(unit)
	if err != nil {
		return err
	}
	s := &service{log: d.host.Path(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(words[0], append(words[1:], d.host.Args[name]...)...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = d.host.Dir, log, log
	// The kernel kills the program when the process of the test ends.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.host.giveName(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	d.services[name] = s
	if unit["Type"] == "notify" {
		return d.awaitReady(s)
	}
	return nil
}

func (d *dispatcher) readUnit(name string) (map[string]string, error) {
	for _, dir := range []string{"etc/systemd/system", "usr/lib/systemd/system"} {
		text, err := os.ReadFile(d.host.Path(filepath.Join(dir, name+".service")))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		unit := map[string]string{}
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				unit[key] = value
			}
		}
		return unit, err
	}
	return nil, fmt.Errorf("there is no unit %s", name)
}

// command is a unit's command. Variables of its environment file are split into words.
func (d *dispatcher) command(unit map[string]string) ([]string, error) {
	words := strings.Fields(unit["ExecStart"])
	file := strings.TrimPrefix(unit["EnvironmentFile"], "-")
	if file == "" {
		return words, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if i := slices.Index(words, "$"+key); i >= 0 {
			words = slices.Replace(words, i, i+1, strings.Fields(value)...)
		}
	}
	return words, nil
}

// giveName has the program see the host's name, which byre's identity derives from. That needs
// root; without it all hosts have the machine's name.
func (h *Host) giveName(cmd *exec.Cmd) {
	if os.Getuid() != 0 {
		return
	}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUTS
	cmd.Args = append([]string{"/bin/sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, h.Name}, cmd.Args...)
	cmd.Path = cmd.Args[0]
}

// awaitReady waits until byre is ready.
func (d *dispatcher) awaitReady(s *service) error {
	// The connection's authenticity is not what is waited for.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for {
		request, err := http.NewRequestWithContext(d.ctx, http.MethodGet, "https://127.0.0.1:"+d.host.Port+"/readyz", nil)
		if err != nil {
			return err
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-s.done:
			return fmt.Errorf("the service ended: %w\n%s", s.err, s.logTail())
		case <-timeout:
			return fmt.Errorf("the service is not ready within %v\n%s", patience, s.logTail())
		case <-tick.C:
		}
	}
}

func (s *service) isRunning() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// stop ends the program, which must end with status 0.
func (s *service) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.done:
		return s.err
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("the service did not end within %v of SIGTERM", patience), s.cmd.Process.Kill())
	}
}

func (s *service) logTail() string {
	const most = 8 << 10
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-most):])
}

// close stops all services at the end of a test.
func (d *dispatcher) close(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, s := range d.services {
		if s.isRunning() {
			if err := s.stop(); err != nil {
				t.Errorf("%s on %s: %v", name, d.host.Name, err)
			}
		}
		if t.Failed() {
			t.Logf("the log of %s on %s ends with:\n%s", name, d.host.Name, s.logTail())
		}
	}
}

// copyTo copies a file of the home directory to that of another host, "NAME:".
func (h *Host) copyTo(file, target string) error {
	peer := h.Peers[strings.TrimSuffix(target, ":")]
	if peer == nil {
		return errors.New("there is no such host")
	}
	text, err := os.ReadFile(filepath.Join(h.Home(), file))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(peer.Home(), file), text, 0o600)
}
