package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// HostsConfigMap is the ConfigMap in kube-system in which each server publishes its ServerHosts under its ID. The
// identity Lease would not do: a server deletes it when it stops, and its names must not become another's meanwhile.
const HostsConfigMap = "byre-apiserver-hosts"

const (
	// hostsLifetime is that of the certificates that byre issues: for so long after its last start a server that is gone
	// may have one for its names.
	hostsLifetime = 365 * 24 * time.Hour
	// hostsInterval is the time between two looks at the files of certificates. The server reloads them every minute.
	hostsInterval = time.Minute
	hostsRetry    = 2 * time.Second
)

// ServerHosts are the names and addresses under which an API server is reached. No node may have a certificate for
// them, unless it is proven that it is on the server's host.
type ServerHosts struct {
	// Hostname is the name of the server's host.
	Hostname string `json:"hostname"`
	// Hosts are the names and addresses in the certificates that the server serves with, and those of its flags.
	Hosts []string `json:"hosts"`
	// Until is when the entry ends unless it is renewed.
	Until metav1.Time `json:"until"`
}

// PublishedHosts returns what the servers of a cluster have published, by their IDs.
func PublishedHosts(ctx context.Context, client kubernetes.Interface) (map[string]ServerHosts, error) {
	published, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, HostsConfigMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	all := make(map[string]ServerHosts, len(published.Data))
	for id, text := range published.Data {
		var hosts ServerHosts
		if err := json.Unmarshal([]byte(text), &hosts); err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %s: %w", metav1.NamespaceSystem, HostsConfigMap, id, err)
		}
		all[id] = hosts
	}
	return all, nil
}

// runHosts publishes the names and addresses of this server until ctx ends.
func (c *ControlPlane) runHosts(ctx context.Context) {
	for isReported := false; ; {
		next := hostsInterval
		if err := c.publishHosts(ctx); err == nil {
			isReported = false
		} else {
			next = hostsRetry
			if !isReported && ctx.Err() == nil {
				c.config.Logger.Error(err, "Could not publish the names and addresses of this server; will try again")
				isReported = true
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// publishHosts writes the entry of this server if it has changed or half of its lifetime is over, and deletes those
// that have ended.
func (c *ControlPlane) publishHosts(ctx context.Context) error {
	hosts, err := c.config.Hosts()
	if err != nil {
		return err
	}
	published, err := PublishedHosts(ctx, c.config.Client)
	if err != nil {
		return err
	}
	now := time.Now()
	data := make(map[string]*string)
	for id, entry := range published {
		if id != c.config.ServerID && entry.Until.Time.Before(now) {
			data[id] = nil
		}
	}
	entry := published[c.config.ServerID]
	if entry.Hostname != c.config.Hostname || !slices.Equal(entry.Hosts, hosts) || entry.Until.Time.Before(now.Add(hostsLifetime/2)) {
		text, err := json.Marshal(ServerHosts{c.config.Hostname, hosts, metav1.NewTime(now.Add(hostsLifetime))})
		if err != nil {
			return err
		}
		data[c.config.ServerID] = new(string(text))
	}
	if len(data) == 0 {
		return nil
	}
	return PatchConfigMap(ctx, c.config.Client, HostsConfigMap, data)
}

// PatchConfigMap sets and, where a value is nil, deletes keys of a ConfigMap in kube-system. It creates the ConfigMap
// if there is none.
func PatchConfigMap(ctx context.Context, client kubernetes.Interface, name string, data map[string]*string) error {
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: make(map[string]string)}
	for key, value := range data {
		if value != nil {
			made.Data[key] = *value
		}
	}
	_, err = maps.Create(ctx, made, metav1.CreateOptions{})
	return err
}
