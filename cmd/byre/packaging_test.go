package main

import (
	"regexp"
	"testing"
)

// A replica at its quota starts, and gets requests: clients must reach it to delete objects. The chart
// and the base leave the check of the quota out of both probes.
func TestPackaging_ProbesLeaveOutTheQuota(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"packaging/helm/byre/templates/deployment.yaml", "packaging/kustomize/base/deployment.yaml"} {
		manifest := packaged(t, file)
		for _, probe := range []string{"startupProbe", "readinessProbe"} {
			path := regexp.MustCompile(probe + `:\s+httpGet:[\s{]+path: "?([^",\s]+)`).FindStringSubmatch(manifest)
			if path == nil || path[1] != "/readyz?exclude=database-quota" {
				t.Errorf("%s: the path of the %s is %q", file, probe, path)
			}
		}
	}
}
