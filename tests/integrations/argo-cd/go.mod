module argo-cd

go 1.26.3

require (
	github.com/argoproj/argo-cd/v3 v3.5.7
	github.com/yuin/gopher-lua v1.1.2
)
