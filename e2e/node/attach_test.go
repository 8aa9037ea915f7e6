package node

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"byre/e2e/programs"
)

// speakers are containers to attach to. What a container wrote before is not shown: kubectl
// waits for ever, on every server, where a container neither writes nor ends. So one writes
// all the time. The other answers each line and ends with its input, which ends with that of
// the first client (stdinOnce): without it, containerd ends the stream with the client's
// input, and its answers are lost.
const speakers = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: clock
    image: ` + image + `
    imagePullPolicy: Never
    command: [sh, -c, "while sleep 0.2; do echo tick; done"]
  - name: echo
    image: ` + image + `
    imagePullPolicy: Never
    command: [sh, -c, "while read -r line; do echo heard $line; done; echo bye"]
    stdin: true
    stdinOnce: true
`

// testAttach attaches by both protocols: to output alone, and to input and output.
func (n *node) testAttach(t *testing.T) {
	for protocol, setting := range map[string]string{"websocket": "true", "spdy": "false"} {
		t.Run(protocol, func(t *testing.T) {
			t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", setting)
			pod := "speakers-" + protocol
			n.apply(t, strings.ReplaceAll(speakers, "NAME", pod))
			n.kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=5m")
			n.attachToOutput(t, pod)
			n.attachToInput(t, pod)
			n.kubectl(t, "delete", "pod", pod)
		})
	}
}

// attach prepares kubectl attach, which ends after patience.
func (n *node) attach(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, programs.Kubectl.Path(),
		append([]string{"--kubeconfig", n.kubeconfig(), "attach", "--quiet"}, args...)...)
}

func (n *node) attachToOutput(t *testing.T, pod string) {
	t.Helper()
	cmd := n.attach(t, pod, "-c", "clock")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "tick\n" {
		t.Errorf("the output is %q, %v", line, err)
	}
	_ = cmd.Process.Kill() // kubectl attach does not end by itself
	_ = cmd.Wait()
}

// attachToInput types a line until it is answered: nothing tells when output is attached.
// Then it ends the input, and kubectl has to end with the container.
func (n *node) attachToInput(t *testing.T, pod string) {
	t.Helper()
	cmd := n.attach(t, pod, "-c", "echo", "-i")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	typed := make(chan error, 1)
	go func() {
		defer in.Close()
		for {
			if _, err := io.WriteString(in, "me\n"); err != nil {
				typed <- err
				return
			}
			select {
			case <-answered:
				typed <- nil
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "heard me" {
		t.Errorf("the first answer is %q, %v", lines.Text(), lines.Err())
	}
	close(answered)
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := <-typed; err != nil {
		t.Errorf("the input: %v", err)
	}
	if err := cmd.Wait(); err != nil || last != "bye" {
		t.Errorf("kubectl attach ends with %v after %q", err, last)
	}
}
