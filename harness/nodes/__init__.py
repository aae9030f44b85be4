"""Two network namespaces, used as two machines that train one job while processes are killed."""
