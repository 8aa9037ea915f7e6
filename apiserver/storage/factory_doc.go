// Package factory makes the Stores of all resources: for a registry that asks for a resource's storage,
// a Getter takes from Resources how its objects are encoded and what keys they have, as upstream's
// storage factory does (k8s.io/apiserver/pkg/server/storage).
package storage
