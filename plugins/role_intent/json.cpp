// Boost.JSON's definitions, compiled into the plugin: it links nothing that it could do without.
#include <boost/json/src.hpp>
